//! The behaviour of a connection, by the path of its request. Complex behaviours have a file each.

mod blast;
mod count;
mod file;
mod stamp;

use std::ops::RangeInclusive;

use wirespeed_driver::connection;
use wirespeed_driver::protocol::{CloseCode, MessageKind, SendError};

use blast::Blast;
use count::Count;
use file::File;

/// Nothing more is produced while this many bytes are queued.
pub(crate) const HIGH_WATER: usize = 256 * 1024;

/// Nothing more is received while this many bytes of replies are queued. Below it, clients may send everything before
/// they read.
const MOST_QUEUED: usize = 1024 * 1024;

/// Sends on a connection.
type Sender<'a> = connection::Sender<'a, Vec<u8>>;

/// The largest message that the server produces, in bytes.
const MOST_SIZE: u64 = 16 << 20;

/// The number of messages in a turn of `/mixed`.
const TURN: usize = 9;

/// The behaviour of a connection.
pub(crate) enum Role {
    /// Echoes every message.
    Echo,
    /// Echoes every message with the times of receipt and reply, through this buffer.
    Stamp(Vec<u8>),
    /// Sends messages, counts messages, or both.
    Stream(Option<Box<Blast>>, Option<Count>),
    /// Sends bytes, and their hash.
    File(Box<File>),
    /// Closes the connection at once.
    Close(CloseCode),
}

impl Role {
    /// Parses the target of a request. Returns what is wrong with it as the error.
    pub(crate) fn for_target(target: &str) -> Result<Self, String> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let number = |name: &str, default: u64, allowed: RangeInclusive<u64>| {
            let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            let number = found.map_or(Some(default), |found| found.parse().ok());
            number.filter(|number| allowed.contains(number)).ok_or_else(|| {
                let (least, most) = allowed.into_inner();
                format!("{name}={}: not a number from {least} to {most}\n", found.unwrap_or_default())
            })
        };
        let blast = |turn| {
            let blast = Blast::new(number("size", 64, 0..=MOST_SIZE)? as usize, turn);
            blast.map(|blast| Some(Box::new(blast))).map_err(|error| error.to_string())
        };
        Ok(match path {
            "/blast" => Self::Stream(blast(None)?, None),
            "/duplex" => Self::Stream(blast(None)?, Some(Count::default())),
            "/mixed" => Self::Stream(blast(Some(TURN))?, Some(Count::default())),
            "/sink" => Self::Stream(None, Some(Count::default())),
            "/hash" => Self::Stream(None, Some(Count::hashing())),
            "/file" => {
                let size = number("size", 65_536, 1..=MOST_SIZE)? as usize;
                Self::File(Box::new(File::new(size, number("bytes", 1 << 20, 0..=u64::MAX)?)))
            }
            "/stamp" => Self::Stamp(Vec::new()),
            "/close" => match CloseCode(number("code", 1000, 0..=u64::from(u16::MAX))? as u16) {
                code if code.is_sendable() => Self::Close(code),
                code => return Err(format!("code={}: not a close code that may be sent\n", code.0)),
            },
            _ => Self::Echo,
        })
    }

    /// Returns the number of queued bytes above which nothing more is received, until at most a quarter is left. It
    /// exceeds the limit of produced messages by [`MOST_QUEUED`], so that the two directions do not block each other,
    /// and counted messages are always received.
    pub(crate) fn most_queued(&self) -> usize {
        MOST_QUEUED
            + match self {
                Self::Stream(Some(blast), _) => HIGH_WATER + blast.block.len(),
                Self::File(file) => HIGH_WATER + file.message.len(),
                _ => 0,
            }
    }

    /// Queues produced messages, as far as the client reads. Returns false if there are no more.
    pub(crate) fn produce(&mut self, sender: &mut Sender<'_>) -> bool {
        let mut more = sender.send_half().state().can_send();
        while more && sender.send_half().queued() < HIGH_WATER {
            more = match self {
                Self::Stream(Some(blast), _) => blast.send(sender.send_half_mut()).unwrap_or(false),
                Self::File(file) => file.send(sender).unwrap_or(false),
                _ => false,
            };
        }
        more
    }

    /// Handles a message.
    pub(crate) fn receive(
        &mut self,
        sender: &mut Sender<'_>,
        kind: MessageKind,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        match self {
            Self::Echo => sender.send_message(kind, bytes, None),
            Self::Stamp(reply) => stamp::answer(sender, kind, bytes, reply),
            Self::Stream(blast, Some(count)) => {
                if count.receive(sender.send_half_mut(), kind, bytes)?
                    && let Some(blast) = blast
                {
                    blast.take_turn();
                }
                Ok(())
            }
            Self::File(file) => {
                file.receive(kind, bytes);
                Ok(())
            }
            Self::Stream(_, None) | Self::Close(_) => Ok(()),
        }
    }
}

/// Returns the payload of a message without its number: byte j is j modulo 256.
fn pattern(size: usize) -> impl Iterator<Item = u8> {
    (0..size).map(|j| (j & 0xFF) as u8)
}

/// Writes a number, 8 bytes little-endian, over the beginning of a message; shorter messages contain a part of it.
fn write_number(message: &mut [u8], number: u64) {
    let length = message.len().min(8);
    message[..length].copy_from_slice(&number.to_le_bytes()[..length]);
}
