//! Paths of routes: any text is added or rejected. A request is routed to a matching path, if there is one, with its
//! parameters. The topic of a relay is valid.

use wirespeed_engine::config::PathPattern;
use wirespeed_engine::topics::Topic;
use wirespeed_engine::{Config, Relay, Role, Route, Routes, fuzzing};
use wirespeed_protocol::handshake::{HeaderList, Request, Version};

use crate::input::Input;

const PATTERNS: [&str; 20] = [
    "/",
    "/",
    "a",
    "b",
    "{x}",
    "{y}",
    "{*r}",
    "/{topic}",
    "/{*topic}",
    ".",
    "-",
    "{",
    "}",
    "{{",
    "}}",
    "*",
    "%2F",
    "é",
    "{é}",
    "{}",
];

const TARGETS: [&str; 20] = [
    "/",
    "/",
    "a",
    "b",
    "x",
    ".",
    "-",
    "%2F",
    "%2E",
    "%",
    "?",
    "#",
    "é",
    "{x}",
    "a=b",
    "http://h",
    "_wirespeed",
    "%2A",
    "%20",
    "*",
];

/// The first byte selects the number of routes; the next bytes are the paths, then the targets of requests.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let config = Config::default();
    let mut routes = Routes::new();
    let mut added: Vec<String> = Vec::new();
    for tag in 0..1 + u32::from(choice & 7) {
        let path = if choice & 8 == 0 {
            input.words(8, &PATTERNS)
        } else {
            let len = input.byte();
            String::from_utf8_lossy(input.take(usize::from(len))).into_owned()
        };
        let mut route = Route::new(Role::Events, config.route_settings());
        route.tag = tag;
        match routes.add(&path, route) {
            Ok(()) => {
                assert!(path.starts_with('/'));
                added.push(path);
            }
            Err(error) => assert!(!error.chars().any(char::is_control), "{error:?}"),
        }
    }
    for _ in 0..8 {
        let target = if choice & 16 == 0 {
            input.words(8, &TARGETS)
        } else {
            let len = input.byte();
            String::from_utf8_lossy(input.take(usize::from(len))).into_owned()
        };
        let request =
            Request { method: "GET".to_owned(), target, version: Version::Http11, headers: HeaderList::new() };
        check(&routes, &added, &request);
    }
    subprotocols(input, &config);
}

/// The selected subprotocol is the first of the route that the client offers.
fn subprotocols(mut input: Input<'_>, config: &Config) {
    const NAMES: [&str; 6] = ["chat", "Chat", "a", "b", "chat.v2", "x"];
    const OFFERS: [&str; 12] = ["chat", "Chat", "a", "b", "chat.v2", ",", ",", " ", "\t", "\"a\"", "chatx", ";"];
    let mut route = Route::new(Role::Events, config.route_settings());
    route.settings.subprotocols = (0..input.below(4)).map(|_| (*input.pick(&NAMES)).to_owned()).collect();
    let mut headers = HeaderList::new();
    let mut offered = Vec::new();
    for _ in 0..input.below(4) {
        let value = input.words(9, &OFFERS);
        offered.extend(value.split(',').map(|name| name.trim_matches([' ', '\t']).to_owned()));
        headers.push("Sec-WebSocket-Protocol", value).expect("it has no line breaks");
    }
    let first = route.settings.subprotocols.iter().find(|name| offered.contains(name)).map(String::as_str);
    assert_eq!(fuzzing::subprotocol(&route, &headers), first, "{:?} of {offered:?}", route.settings.subprotocols);
}

fn check(routes: &Routes, added: &[String], request: &Request) {
    let (path, query) = fuzzing::path_and_query(request);
    assert!(!path.contains(['?', '#']) && !query.contains('#'), "{}", request.target);
    assert!(path.is_empty() || path.starts_with('/'), "{path:?}");
    if request.target.starts_with('/') {
        let whole = request.target.split('#').next().unwrap_or_default();
        assert_eq!((path, query), whole.split_once('?').unwrap_or((whole, "")));
    }
    let fitting: Vec<&String> = added.iter().filter(|pattern| !path.is_empty() && fits(pattern, path)).collect();
    let Some(route) = fuzzing::find(routes, request) else {
        assert!(fitting.is_empty(), "{path:?} matches {fitting:?} of {added:?}, but no route is found");
        return;
    };
    let pattern = route.pattern().expect("the route was added with a pattern");
    assert!(fitting.iter().any(|fitting| *fitting == pattern), "{path:?} is routed to {pattern:?}");
    let params = route.params(path);
    let (mut filled, mut left) = (String::new(), pattern);
    for (name, value) in &params {
        let (text, behind) = left.split_once('{').expect("as many placeholders as names");
        let (place, behind) = behind.split_once('}').expect("the end of the placeholder");
        assert!(!value.is_empty());
        assert_eq!(place.strip_prefix('*').unwrap_or(place), *name);
        assert!(!value.contains('/') || place.starts_with('*'), "{value:?} for {name:?} of {pattern:?}");
        filled.extend([text, value]);
        left = behind;
    }
    assert_eq!(filled + left, path, "{params:?} of {pattern:?}");
    for prefix in [None, Some("app")] {
        let relay = Relay { prefix: prefix.map(|prefix| Topic::new(prefix).unwrap()), ..Relay::default() };
        if let Some(topic) = fuzzing::topic(&relay, &route, request) {
            assert!(params.iter().any(|(name, _)| *name == "topic"));
            assert!(Topic::new(topic.as_str()).is_ok());
            assert!(topic.segments().next() == Some("app") || prefix.is_none());
            assert!(topic.segments().next() != Some("_wirespeed"));
        }
    }
    let _: &PathPattern = &route.pattern;
}

/// Matches by backtracking. A placeholder matches one or more characters except slashes; with a star, slashes too.
fn fits(pattern: &str, path: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix('{')
        && let Some((name, behind)) = rest.split_once('}')
    {
        let letters = path.char_indices().map(|(at, letter)| (at + letter.len_utf8(), letter));
        let mut ends = letters.take_while(|(_, letter)| name.starts_with('*') || *letter != '/').map(|(end, _)| end);
        return ends.any(|end| fits(behind, &path[end..]));
    }
    match (pattern.chars().next(), path.chars().next()) {
        (None, None) => true,
        (Some(one), Some(other)) if one == other => fits(&pattern[one.len_utf8()..], &path[one.len_utf8()..]),
        _ => false,
    }
}
