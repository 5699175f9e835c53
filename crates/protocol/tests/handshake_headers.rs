//! The list of header fields.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use proptest::prelude::*;
use wirespeed_protocol::handshake::{
    DuplicateHeader, HeaderError, HeaderList, Limits, Progress, ServerConfig, ServerHandshake,
};

fn list(fields: &[(&str, &str)]) -> HeaderList {
    let mut headers = HeaderList::new();
    for (name, value) in fields {
        headers.push(name, value).unwrap();
    }
    headers
}

fn pairs(headers: &HeaderList) -> Vec<(&str, &str)> {
    headers.iter().map(|header| (header.name(), header.value_str().unwrap())).collect()
}

#[test]
fn order_case_and_duplicates_are_kept() {
    let mut headers = list(&[("B", "1"), ("a", "2"), ("b", "3"), ("A", "4")]);
    assert_eq!(pairs(&headers), [("B", "1"), ("a", "2"), ("b", "3"), ("A", "4")]);
    assert_eq!(headers.all("b").collect::<Vec<_>>(), [b"1", b"3"]);
    assert_eq!(headers.single("c"), Ok(None));
    assert_eq!(headers.single("b"), Err(DuplicateHeader { name: "b".to_owned() }));
    assert_eq!(headers.value_str("A"), Some("2"));
    assert!(headers.contains("a") && !headers.contains("c"));
    assert_eq!((headers.len(), headers.remove("a"), headers.len(), headers.remove("a")), (4, 2, 2, 0));
    assert_eq!(pairs(&headers), [("B", "1"), ("b", "3")]);
}

#[test]
fn set_keeps_the_position_of_the_first() {
    let mut headers = list(&[("a", "1"), ("b", "2"), ("c", "3"), ("B", "4"), ("d", "5")]);
    headers.set("B", "x").unwrap();
    assert_eq!(pairs(&headers), [("a", "1"), ("B", "x"), ("c", "3"), ("d", "5")]);
    headers.set("e", "y").unwrap();
    assert_eq!(headers.iter().last().unwrap().name(), "e");
    let before = headers.clone();
    assert!(headers.set("a", "\n").is_err());
    assert_eq!(headers, before);
}

#[test]
fn tokens_span_occurrences_and_skip_empty_elements() {
    let headers = list(&[("A", "one, two ,,three"), ("x", "no"), ("a", ",\tFour\t,")]);
    assert_eq!(headers.tokens("a").collect::<Vec<_>>(), [b"one".as_slice(), b"two", b"three", b"Four"]);
    assert!(headers.contains_token("a", "four") && !headers.contains_token("a", "fou"));
}

#[test]
fn values_are_trimmed() {
    assert_eq!(list(&[("a", " \t b c\t ")]).single("a").unwrap(), Some(b"b c".as_slice()));
    assert_eq!(list(&[("a", " \t ")]).single("a").unwrap(), Some(b"".as_slice()));
}

#[test]
fn line_injection_is_rejected() {
    let mut headers = HeaderList::new();
    for name in ["", "a b", "a:", "a\r\nb", "a\0", "\u{e9}", "a,b", "a\"", "(a)"] {
        assert_eq!(headers.push(name, "x"), Err(HeaderError::Name { name: name.to_owned() }));
    }
    for value in ["a\rb", "a\nb", "a\r\nX: y", "a\0b", "\r\n", "a\x1b", "a\x7f"] {
        let error = headers.push("Name", value).unwrap_err();
        assert_eq!(error, HeaderError::Value { name: "Name".to_owned() });
        assert!(error.to_string().contains("Name header"), "{error}");
    }
    assert!(headers.is_empty());
    headers.push("!#$%&'*+-.^_`|~09azAZ", [0xe9, b'\t', 0xff]).unwrap();
    assert_eq!(headers.iter().next().unwrap().value_str(), None);
}

#[test]
fn debug_output_has_no_secrets() {
    let secrets = ["authorization", "Proxy-Authorization", "Cookie", "Set-Cookie"];
    for name in secrets {
        let text = format!("{:?}", list(&[(name, "secret")]));
        assert_eq!(text, format!("[{name}: [6 bytes]]"));
    }
    assert_eq!(format!("{:?}", list(&[("Host", "a")])), "[Host: a]");
}

proptest! {
    /// A head reader returns the fields that a list has written.
    #[test]
    fn round_trip(fields in proptest::collection::vec(("[!#-'*+.0-9A-Z^-z|~-]{1,12}", proptest::collection::vec(any::<u8>(), 0..20)), 0..20)) {
        let mut headers = HeaderList::new();
        for (name, value) in &fields {
            let _ = headers.push(name, value);
        }
        let mut bytes = b"GET / HTTP/1.1\r\n".to_vec();
        headers.write_to(&mut bytes);
        bytes.extend_from_slice(b"\r\n");
        let mut server = ServerHandshake::new(ServerConfig::default(), Limits::default());
        prop_assert_eq!(server.receive(&bytes), Ok(Progress::Complete { consumed: bytes.len(), output: () }));
        prop_assert_eq!(&server.request().unwrap().headers, &headers);
    }

    #[test]
    fn push_accepts_only_valid_fields(name in "\\PC{0,8}|[a-z]{1,3}", value in proptest::collection::vec(any::<u8>(), 0..12)) {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let valid_name = !name.is_empty() && name.bytes().all(token);
        let trimmed = value.iter().copied().skip_while(|byte| b" \t".contains(byte)).collect::<Vec<_>>();
        let valid_value = trimmed.iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
        let mut headers = HeaderList::new();
        prop_assert_eq!(headers.push(&name, &value).is_ok(), valid_name && valid_value);
    }
}
