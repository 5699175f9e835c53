//! A chat: what a client says goes to all who are in the same room, which is the path that they connect to.
//!
//! `cargo run -p wirespeed-engine --example chat -- 127.0.0.1:8765`, then `wirespeed ws://127.0.0.1:8765/lobby` twice.

#![allow(clippy::print_stdout)] // an example, for a terminal

use std::error::Error;

use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Listen, Place, Role, Route, Routes, Session};

/// Rooms are topics; a path may have what a topic must not.
fn room(session: &Session) -> String {
    let name: String = session.path().chars().filter(char::is_ascii_alphanumeric).collect();
    format!("rooms.{}", if name.is_empty() { "lobby" } else { &name })
}

fn handle(engine: &Engine, session: &Session, event: &Event<'_>) -> Result<(), Box<dyn Error>> {
    let topic = Topic::new(&room(session))?;
    let said = match event {
        Event::Connected => {
            let joined = Pattern::new(topic.as_str())?;
            session.subscribe(&joined).map_err(|refusal| format!("{refusal:?}"))?;
            format!("{} is here", session.id())
        }
        Event::Message { data, .. } => format!("{}: {}", session.id(), String::from_utf8_lossy(data)),
        Event::Disconnected(_) => format!("{} has left", session.id()),
    };
    let published = engine.publish(&topic, MessageKind::Text, said.as_bytes(), None, None);
    published.map_err(|refusal| format!("{refusal:?}"))?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8765".to_owned()).parse()?;
    let mut config = Config { listen: vec![Listen { at: Place::Tcp(at), tls: None }], ..Config::default() };
    let mut routes = Routes::new();
    routes.add("/{*room}", Route::new(Role::Events, config.route_settings()))?;
    config.routes = Some(std::sync::Arc::new(routes));
    let engine = Engine::start(config)?;
    for place in engine.places() {
        println!("listening at {place:?}");
    }
    // The errors of one client are no reason to end.
    while let Ok(batches) = engine.events().take(1000, None) {
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            if let Err(error) = handle(&engine, session, &event) {
                eprintln!("session {}: {error}", session.id());
            }
        }
    }
    Ok(())
}
