//! Connections that have had a message echoed are held until standard input ends. Pings are answered; there
//! is nothing else to come.

use std::time::Instant;

use super::answer::Answer;
use super::client::Found;
use super::crew::{Crew, STDIN};

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    crew.open_all()?;
    crew.echo_once()?;
    let begin = Instant::now();
    crate::show("ready\n");
    let mut held = crew.watch_stdin()?;
    while held {
        crew.wait_quietly(None)?;
        for index in 0..crew.ready.len() {
            if crew.ready[index].number == STDIN {
                held = false;
            } else if crew.open_one(index)? == Found::Closed {
                return Err("the server has closed a connection".into());
            }
        }
    }
    Ok(Answer {
        count: crew.clients.len() as u64,
        seconds: begin.elapsed().as_secs_f64(),
        deflate: crew.deflate(),
        pings: Some(crew.pings()),
        ..Answer::default()
    })
}
