//! The incremental UTF-8 validator, compared with the standard library at every split point.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use support::{Frame, SIDES, Seen, connection, feed_all, sparse, stream_to};
use wirespeed_protocol::Fault;
use wirespeed_protocol::utf8::{InvalidUtf8, Validator, validate};

/// Valid texts of section 6 of the Autobahn suite: characters of each length and the ends of each range.
const VALID: [&[u8]; 13] = [
    b"",
    b"Hello-\xc2\xb5@\xc3\x9f\xc3\xb6\xc3\xa4\xc3\xbc\xc3\xa0\xc3\xa1-UTF-8!!",
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5",
    b"\x00",
    b"\x7f",
    b"\xc2\x80\xdf\xbf",
    b"\xe0\xa0\x80\xef\xbf\xbf",
    b"\xed\x9f\xbf\xee\x80\x80",
    b"\xef\xbf\xbd\xef\xb7\x90",
    b"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
    b"\xf0\x9f\x98\x80 and \xf0\x9f\x91\x8d",
    b"\xf0\x9f\xbf\xbe\xf4\x8f\xbf\xbe",
    b"only ASCII, but longer than the vectors of any machine that this runs on: sixty-four bytes and a few more",
];

/// Invalid texts of the same section: unexpected and missing continuation bytes, overlong forms, surrogates, code points
/// above U+10FFFF, bytes that never occur.
const INVALID: [&[u8]; 32] = [
    b"\x80",
    b"\xbf\x80",
    b"\x80\xbf\x80\xbf\x80\xbf",
    b"\xc0\x20\xc1\x20",
    b"\xc0\xaf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xe0\x80\xaf",
    b"\xe0\x80\x80",
    b"\xe0\x9f\xbf",
    b"\xf0\x80\x80\xaf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x80\x80\x80",
    b"\xf8\x80\x80\x80\xaf",
    b"\xf8\x87\xbf\xbf\xbf",
    b"\xfc\x80\x80\x80\x80\xaf",
    b"\xfc\x83\xbf\xbf\xbf\xbf",
    b"\xf8\x88\x80\x80\x80",
    b"\xfc\x84\x80\x80\x80\x80",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xf7\xbf\xbf\xbf",
    b"\xed\xa0\x80",
    b"\xed\xad\xbf",
    b"\xed\xbf\xbf",
    b"\xed\xa0\x80\xed\xb0\x80",
    b"\xfe",
    b"\xff",
    b"\xfe\xfe\xff\xff",
    b"\xe1\xbd\xb9\xc3", // ends inside a character
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited",
];

/// Returns the number of bytes after which the text cannot become valid any more; `None` if it always can.
fn fails_at(text: &[u8]) -> Option<usize> {
    let start = std::str::from_utf8(text).err()?.valid_up_to();
    let fails = |end: &usize| std::str::from_utf8(&text[start..=*end]).is_err_and(|error| error.error_len().is_some());
    (start..text.len()).find(fails)
}

/// Feeds the pieces and compares with the standard library after each.
fn check<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) {
    let mut validator = Validator::default();
    let mut so_far = Vec::new();
    for piece in pieces {
        so_far.extend_from_slice(piece);
        let verdict = validator.feed(piece);
        assert_eq!(verdict, if fails_at(&so_far).is_some() { Err(InvalidUtf8) } else { Ok(()) }, "{so_far:x?}");
        if verdict.is_err() {
            return;
        }
        let complete = std::str::from_utf8(&so_far).is_ok();
        assert_eq!(validator.finish(), if complete { Ok(()) } else { Err(InvalidUtf8) }, "{so_far:x?}");
    }
}

/// Returns the text by itself, with ASCII around it, and at every position of a vector.
fn surrounded(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    [(0, 0), (1, 0), (0, 1), (15, 40), (61, 1), (62, 70), (63, 0), (64, 64), (127, 3)]
        .into_iter()
        .map(move |(before, behind)| [&vec![b'a'; before], text, &vec![b'z'; behind]].concat())
}

#[test]
fn validator_matches_std_at_every_split() {
    for text in VALID.iter().chain(&INVALID).flat_map(|text| surrounded(text)).step_by(sparse(13)) {
        assert_eq!(validate(&text).is_ok(), std::str::from_utf8(&text).is_ok(), "{text:x?}");
        check(text.chunks(1));
        for split in (0..=text.len()).step_by(sparse(11)) {
            let (first, rest) = text.split_at(split);
            check([first, rest]);
            for again in 0..=rest.len().min(6) {
                let (second, third) = rest.split_at(again);
                check([first, second, third]);
            }
        }
    }
}

/// Checks all sequences of one to three bytes that do not begin with ASCII, and a sample of those of four bytes.
#[test]
fn validator_matches_std_for_all_short_sequences() {
    for first in (0x80..=0xFF_u8).step_by(sparse(5)) {
        check([&[first][..]]);
        for second in (0..=0xFF_u8).step_by(sparse(23)) {
            check([&[first][..], &[second]]);
            for third in [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xFF] {
                check([&[first][..], &[second, third]]);
                for fourth in [0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xF0] {
                    check([&[first, second][..], &[third], &[fourth]]);
                }
            }
        }
    }
}

/// The chunk with the first invalid byte fails the connection (RFC 6455 8.1), even if the message is not complete.
#[test]
fn first_invalid_byte_fails_the_connection() {
    for text in INVALID {
        for side in SIDES {
            let filler = [b'.'; 100];
            let whole = [text, &filler[..]].concat();
            let failing = fails_at(&whole).unwrap();
            let one = stream_to(side, [Frame::text(&whole)]);
            let fragmented = stream_to(side, [Frame::text("").open(), Frame::continuation(&whole).open()]);
            for bytes in [one, fragmented] {
                let end = bytes.len() - whole.len() + failing + 1;
                let mut receiver = connection(side);
                let events = feed_all(&mut receiver, bytes[..end - 1].chunks(1));
                assert_eq!(events, [], "{text:x?} before {failing}");
                assert_eq!(feed_all(&mut receiver, [&bytes[end - 1..end]]), [Seen::Fault(Fault::InvalidUtf8)]);
                // Also in one chunk with the bytes before it.
                assert_eq!(feed_all(&mut connection(side), [&bytes[..end]]), [Seen::Fault(Fault::InvalidUtf8)]);
            }
        }
    }
}

#[test]
fn message_must_not_end_inside_a_character() {
    for side in SIDES {
        for text in [&b"\xc3"[..], b"ab\xe1\xbd", b"\xf0\x9f\x98"] {
            let fault = [Seen::Fault(Fault::InvalidUtf8)];
            assert_eq!(feed_all(&mut connection(side), [&stream_to(side, [Frame::text(text)])[..]]), fault);
            let fragments =
                stream_to(side, [Frame::text(text).open(), Frame::ping("x"), Frame::continuation("").open()]);
            let mut receiver = connection(side);
            assert_eq!(feed_all(&mut receiver, [&fragments[..]]), [Seen::Ping(b"x".to_vec())]);
            assert_eq!(feed_all(&mut receiver, [&stream_to(side, [Frame::continuation("")])[..]]), fault);
        }
    }
}

proptest! {
    /// Random bytes, often those that occur in UTF-8, in random pieces.
    #[test]
    fn any_bytes_in_any_pieces(pieces in prop::collection::vec(prop::collection::vec(prop_oneof![
        4 => 0x20..0x7F_u8,
        4 => 0x80..=0xBF_u8,
        3 => 0xC0..=0xFF_u8,
    ], 0..6), 0..12)) {
        check(pieces.iter().map(Vec::as_slice));
    }

    #[test]
    fn any_text_in_any_pieces(text in "\\PC{0,80}", cuts in prop::collection::vec(0..400_usize, 0..6)) {
        let bytes = text.as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        check(cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]));
    }
}
