//! Connections are opened until the server or the system has enough of them; those that then echo a message
//! are counted.

use std::time::{Duration, Instant};

use crate::descriptors;

use super::answer::Answer;
use super::client::{Client, Found};
use super::crew::{Crew, OPENING, Ready};
use super::window::Window;

/// How long no opening handshake may be answered.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    let allowed = descriptors::raise();
    crew.open_first()?;
    let mut window = Window::begin(crew);
    let stopped = open(crew, allowed)?;
    let (took, waited) = (window.begin.elapsed(), crew.waited);
    // Those that were not ready when it stopped are none.
    for number in 0..crew.clients.len() {
        if crew.clients[number].as_ref().is_some_and(|client| !client.is_open()) {
            crew.forget(number);
        }
    }
    let deflate = crew.deflate();
    let (stayed, reason) = echo(crew)?;
    let stopped = match reason {
        Some(reason) => format!("{stopped}; {reason}"),
        None => stopped,
    };
    if stayed == 0 {
        return Err(format!("no connection stayed: {stopped}"));
    }
    window.count(Instant::now(), stayed);
    crew.waited = waited;
    let answer = window.finish_after(crew, Instant::now(), took);
    Ok(Answer { deflate, latencies: None, deviation: None, stopped: Some(stopped), ..answer })
}

/// Opens connections until that is of no more use, and says why.
fn open(crew: &mut Crew<'_>, allowed: usize) -> Result<String, String> {
    let most = crew.options.connections.min(allowed);
    let (mut begun, mut opened, mut failed) = (1, 1, 0);
    let mut stopped = None;
    let mut answered = Instant::now();
    loop {
        // After the first that failed no more are begun, but those under way may still succeed.
        while stopped.is_none() && begun < most && begun - opened - failed < OPENING {
            if let Err(error) = crew.connect(begun) {
                stopped = Some(format!("connection {} could not be begun: {error}", begun + 1));
            } else {
                begun += 1;
            }
        }
        if opened + failed == begun {
            return Ok(stopped.unwrap_or_else(|| {
                if most < crew.options.connections {
                    format!("the limit of file descriptors of the load generator allows {most} connections")
                } else {
                    "there are as many as --connections allows".into()
                }
            }));
        }
        crew.wait_quietly(Some(answered + PATIENCE))?;
        for index in 0..crew.ready.len() {
            let number = crew.ready[index].number;
            match crew.open_one(index) {
                Ok(Found::Opened) => {
                    opened += 1;
                    answered = Instant::now();
                }
                Ok(_) => {}
                Err(error) => {
                    stopped.get_or_insert_with(|| format!("with {opened} connections open: {error}"));
                    // One that was open and is gone was counted already.
                    let was_open = crew.clients[number].as_ref().is_some_and(Client::is_open);
                    failed += usize::from(!was_open);
                    crew.forget(number);
                }
            }
        }
        if answered.elapsed() >= PATIENCE {
            return Ok(stopped.unwrap_or_else(|| {
                let seconds = PATIENCE.as_secs();
                format!("with {opened} connections open: no opening handshake was answered for {seconds} s")
            }));
        }
    }
}

/// How many connections echo a message, and why the others do not. A reply that is wrong is an error.
fn echo(crew: &mut Crew<'_>) -> Result<(u64, Option<String>), String> {
    let now = Instant::now();
    let (mut left, mut reason) = (0_usize, None);
    for client in crew.clients.iter_mut().flatten() {
        let mut line = client.line(now)?;
        if line.sender.link.state().can_send() {
            line.send(&mut crew.content, now)?;
            line.flush();
            left += 1;
        }
    }
    let mut answered = Instant::now();
    while left > 0 && answered.elapsed() < PATIENCE {
        crew.wait_quietly(Some(answered + PATIENCE))?;
        for index in 0..crew.ready.len() {
            let Ready { number, closed } = crew.ready[index];
            let Some(client) = crew.clients.get_mut(number).and_then(Option::as_mut) else { continue };
            let asked = !client.exchange().due.is_empty();
            let (content, mut wrong) = (&crew.content, None);
            let result = client.proceed(closed, &mut |line, kind, bytes| {
                if let Err(error) = line.take(content, kind, bytes) {
                    wrong.get_or_insert(error);
                }
                Ok(())
            });
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
            let echoed =
                asked && crew.clients[number].as_ref().map(Client::exchange).is_some_and(|it| it.due.is_empty());
            if echoed {
                left -= 1;
                answered = Instant::now();
            }
            if let Err(error) = result {
                left -= usize::from(asked && !echoed);
                reason.get_or_insert(error);
                crew.forget(number);
            }
        }
    }
    if left > 0 {
        reason.get_or_insert(format!("{left} connections did not echo a message within {} s", PATIENCE.as_secs()));
    }
    let echoed = |client: &&Client| client.exchange().due.is_empty() && client.exchange().expected > 0;
    Ok((crew.clients.iter().flatten().filter(echoed).count() as u64, reason))
}
