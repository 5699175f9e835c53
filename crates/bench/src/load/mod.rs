//! The load generator: many clients in one thread, which count only what they have checked. One file for each
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
mod publications;
mod publish;
mod schedule;
mod sink;
mod storm;
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
        descriptors::allow(options.connections)?;
    }
    let answer = measure(&options)?;
    if let Some(limited) = answer.limited.filter(|limited| *limited > LIMITED) {
        warn(&format!("the load generator was the limit: busy {:.0} % of the window", limited * 100.0));
    }
    show(&answer.to_json());
    Ok(())
}

fn measure(options: &Options) -> Result<Answer, String> {
    let mut crew = Crew::new(options)?;
    match options.workload {
        Workload::Echo if options.rate.is_some() => paced::run(&mut crew),
        Workload::Echo => echo::run(&mut crew),
        Workload::Burst => burst::run(&mut crew),
        Workload::Sink => sink::run(&mut crew),
        Workload::FanOut => fan_out::run(&mut crew),
        Workload::Publish => publish::run(&mut crew),
        Workload::Open => open::run(&mut crew),
        Workload::Storm => storm::run(&mut crew),
        Workload::Hold => hold::run(&mut crew),
        Workload::Most => most::run(&mut crew),
        Workload::Idle => idle::run(&mut crew),
    }
}

/// What went wrong, in words.
fn text(error: impl ToString) -> String {
    error.to_string()
}
