//! The load generator: many clients in one or a few threads. It counts only checked replies.

mod answer;
mod client;
mod client_pool;
mod closed;
mod content;
mod held;
mod openings;
mod options;
mod paced;
mod publications;
mod publish;
mod rounds;
mod schedule;
mod sink;
mod threads;
mod tls;
mod window;

use std::error::Error;

use crate::{descriptors, show, warn};
use answer::Answer;
use client_pool::ClientPool;
pub(crate) use options::Options;
use options::Workload;

/// The share of busy time above which the load generator is reported as the limit.
const LIMITED: f64 = 0.9;

pub(crate) fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let options = options.complete()?;
    descriptors::allow(options.clients())?;
    let workload: fn(&mut ClientPool) -> Result<Answer, String> = match options.workload {
        Workload::Echo if options.rate.is_some() => paced::echo,
        Workload::Echo => closed::echo,
        Workload::Burst => closed::burst,
        Workload::Sink => sink::run,
        Workload::FanOut => publish::fan_out,
        Workload::Publish => publish::publish,
        Workload::Open => openings::open,
        Workload::Touch => openings::touch,
        Workload::Storm => openings::storm,
        Workload::Pings => paced::pings,
        Workload::Hold => held::hold,
        Workload::Idle => held::idle,
    };
    let answer =
        if options.threads > 1 { threads::run(&options, workload)? } else { workload(&mut ClientPool::new(options)?)? };
    if let Some(limited) = answer.limited.filter(|limited| *limited > LIMITED) {
        warn(&format!("the load generator was the limit: busy {:.0} % of the window", limited * 100.0));
    }
    show(&format!("{}\n", answer.to_json()));
    Ok(())
}

/// Converts an error to its text.
fn text(error: impl ToString) -> String {
    error.to_string()
}
