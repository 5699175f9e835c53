//! The load generator: many clients in one thread, or in a few, which count only what they have checked. One file for each
//! workload.

mod answer;
mod burst;
mod client;
mod content;
mod crew;
mod echo;
mod fan_out;
mod histogram;
mod hold;
mod idle;
mod most;
mod open;
mod options;
mod paced;
mod pings;
mod publications;
mod publish;
mod schedule;
mod sink;
mod storm;
mod team;
mod tls;
mod touch;
mod window;

use std::error::Error;

use lexopt::Parser;

use crate::{descriptors, show, warn};
use answer::Answer;
use crew::Crew;
use options::{Options, Workload};

/// The share of a window in which the load generator had work, from which on it is said that it was the
/// limit.
const LIMITED: f64 = 0.9;

pub(crate) fn run(arguments: Parser) -> Result<(), Box<dyn Error>> {
    let Some(options) = options::parse(arguments)? else { return Ok(()) };
    if options.workload == Workload::Most {
        descriptors::raise();
    } else {
        descriptors::allow(options.clients())?;
    }
    let answer = measure(&options)?;
    if let Some(limited) = answer.limited.filter(|limited| *limited > LIMITED) {
        warn(&format!("the load generator was the limit: busy {:.0} % of the window", limited * 100.0));
    }
    show(&answer.to_json());
    Ok(())
}

fn measure(options: &Options) -> Result<Answer, String> {
    if options.threads > 1 { team::run(options, workload) } else { workload(&mut Crew::new(options)?) }
}

fn workload(crew: &mut Crew<'_>) -> Result<Answer, String> {
    match crew.options.workload {
        Workload::Echo if crew.options.rate.is_some() => paced::run(crew),
        Workload::Echo => echo::run(crew),
        Workload::Burst => burst::run(crew),
        Workload::Sink => sink::run(crew),
        Workload::FanOut => fan_out::run(crew),
        Workload::Publish => publish::run(crew),
        Workload::Open => open::run(crew),
        Workload::Touch => touch::run(crew),
        Workload::Storm => storm::run(crew),
        Workload::Pings => pings::run(crew),
        Workload::Hold => hold::run(crew),
        Workload::Most => most::run(crew),
        Workload::Idle => idle::run(crew),
    }
}

/// What went wrong, in words.
fn text(error: impl ToString) -> String {
    error.to_string()
}
