//! What the server does on a connection, by the path of the request. One file for each kind that does more
//! than answer.

mod blast;
mod count;
mod file;
mod stamp;

use wirespeed_driver::drive;
use wirespeed_driver::protocol::{CloseCode, MessageKind, Payload, SendError};

use blast::Blast;
use count::Count;
use file::File;

/// Bytes queued above which nothing more is produced until the client has read.
pub(crate) const HIGH_WATER: usize = 256 * 1024;

/// Bytes of answers queued above which nothing more is received until the client has read. A client that
/// sends everything before it reads anything is served as long as no more has to be kept for it.
const MOST_QUEUED: usize = 1024 * 1024;

/// What sends.
type Sender<'a> = drive::Sender<'a, Vec<u8>>;

/// What a connection is for.
pub(crate) enum Role {
    /// Every message goes back.
    Echo,
    /// Every message goes back with the times at which it came and went; the buffer is for the reply.
    Stamp(Vec<u8>),
    /// Messages are sent as fast as the client reads.
    Blast(Box<Blast>),
    /// Messages are counted.
    Sink(Count),
    /// Both at the same time.
    Duplex(Box<Blast>, Count),
    /// Bytes are sent, and what they must hash to.
    File(Box<File>),
    /// The connection is closed at once.
    Close(CloseCode),
    /// Nothing is read or written.
    Deaf,
}

impl Role {
    /// The role that a request's target asks for, or what is wrong with it.
    pub(crate) fn for_target(target: &str) -> Result<Self, String> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        match path {
            "/blast" => Ok(Self::Blast(Box::new(Blast::parse(parameter("size").unwrap_or("64"))?))),
            "/duplex" => Ok(Self::Duplex(Box::new(Blast::parse(parameter("size").unwrap_or("64"))?), Count::default())),
            "/sink" => Ok(Self::Sink(Count::default())),
            "/hash" => Ok(Self::Sink(Count::hashing())),
            "/file" => {
                let (size, bytes) = (parameter("size").unwrap_or("65536"), parameter("bytes").unwrap_or("1048576"));
                Ok(Self::File(Box::new(File::parse(size, bytes)?)))
            }
            "/stamp" => Ok(Self::Stamp(Vec::new())),
            "/deaf" => Ok(Self::Deaf),
            "/close" => {
                let code = parameter("code").unwrap_or("1000");
                match code.parse().map(CloseCode) {
                    Ok(code) if code.is_sendable() => Ok(Self::Close(code)),
                    _ => Err(format!("code={code}: not a close code that may be sent\n")),
                }
            }
            _ => Ok(Self::Echo),
        }
    }

    /// Bytes queued above which nothing more is received, until no more than a quarter is left. What is sent
    /// unasked is less than that by [`MOST_QUEUED`]: of two directions neither waits for the other, and what
    /// is only counted is always received.
    pub(crate) fn most_queued(&self) -> usize {
        MOST_QUEUED
            + match self {
                Self::Blast(blast) | Self::Duplex(blast, _) => HIGH_WATER + blast.block.len(),
                Self::File(file) => HIGH_WATER + file.message.len(),
                _ => 0,
            }
    }

    /// Queues what is to be sent unasked, as far as the client reads. False: there is nothing more.
    pub(crate) fn produce(&mut self, sender: &mut Sender<'_>) -> bool {
        let mut more = sender.link.state().can_send();
        while more && sender.link.queued() < HIGH_WATER {
            more = match self {
                Self::Blast(blast) | Self::Duplex(blast, _) => blast.send(sender.link).is_ok(),
                Self::File(file) => file.send(sender).unwrap_or(false),
                _ => false,
            };
        }
        more
    }

    /// Answers a message.
    pub(crate) fn receive(
        &mut self,
        sender: &mut Sender<'_>,
        kind: MessageKind,
        payload: &Payload<'_, Vec<u8>>,
    ) -> Result<(), SendError> {
        let bytes = payload.as_slice();
        match self {
            Self::Echo => sender.send_message(kind, bytes, None),
            Self::Stamp(reply) => stamp::answer(sender, kind, bytes, reply),
            Self::Sink(count) | Self::Duplex(_, count) => count.receive(sender.link, kind, bytes),
            Self::File(file) => {
                file.receive(kind, bytes);
                Ok(())
            }
            Self::Blast(_) | Self::Close(_) | Self::Deaf => Ok(()),
        }
    }
}

/// A size of messages that are numbered by the server.
fn parse_size(text: &str, least: usize) -> Result<usize, String> {
    /// The largest message that is made here.
    const MOST: usize = 16 << 20;
    match text.parse() {
        Ok(size) if (least..=MOST).contains(&size) => Ok(size),
        _ => Err(format!("size={text}: not a number from {least} to {MOST}\n")),
    }
}

/// Message `number` of that length: its number, 8 bytes little-endian, then byte j is j modulo 256.
fn pattern(size: usize) -> impl Iterator<Item = u8> {
    (0..size).map(|j| (j & 0xFF) as u8)
}

/// Writes the number of a message at its beginning, as far as there is room.
fn write_number(message: &mut [u8], number: u64) {
    let length = message.len().min(8);
    message[..length].copy_from_slice(&number.to_le_bytes()[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        assert!(matches!(Role::for_target("/"), Ok(Role::Echo)));
        assert!(matches!(Role::for_target("/blast?size=100"), Ok(Role::Blast(_))));
        assert!(matches!(Role::for_target("/duplex?size=100"), Ok(Role::Duplex(..))));
        assert!(matches!(Role::for_target("/close?code=4000"), Ok(Role::Close(CloseCode(4000)))));
        assert!(matches!(Role::for_target("/sink"), Ok(Role::Sink(_))));
        assert!(matches!(Role::for_target("/hash"), Ok(Role::Sink(_))));
        assert!(matches!(Role::for_target("/file?size=100&bytes=1000"), Ok(Role::File(_))));
        assert!(matches!(Role::for_target("/stamp"), Ok(Role::Stamp(_))));
        assert!(matches!(Role::for_target("/deaf"), Ok(Role::Deaf)));
        assert!(Role::for_target("/close?code=1005").is_err());
        for target in ["/blast?size=x", "/duplex?size=99999999", "/file?size=0", "/file?bytes=-1"] {
            assert!(Role::for_target(target).is_err(), "{target}");
        }
    }
}
