//! What the server does on a connection, by the path of the request.

use wirespeed_driver::buffers;
use wirespeed_driver::peer::Link;
use wirespeed_driver::protocol::{CloseCode, MessageKind, Payload, SendError};
use wirespeed_driver::socket::{Mode, Socket};

/// Frames that are encoded at once: a block of about this many bytes, at least one frame.
const BLOCK: usize = 64 * 1024;

/// The largest message of `/blast`.
const MAX_BLAST: usize = 16 << 20;

/// What a connection is for.
pub(crate) enum Role {
    Echo,
    Blast(Box<Blast>),
    Sink { messages: u64, bytes: u64 },
    Close(CloseCode),
}

/// A block of frames that is sent again and again, renumbered.
pub(crate) struct Blast {
    block: Vec<u8>,
    /// Where each frame's payload starts in the block.
    payloads: Vec<usize>,
    size: usize,
    next: u64,
}

impl Role {
    /// The role that a request's target asks for, or what is wrong with it.
    pub(crate) fn for_target(target: &str) -> Result<Self, String> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        match path {
            "/blast" => {
                let size = parameter("size").unwrap_or("64");
                match size.parse() {
                    Ok(size) if size <= MAX_BLAST => Ok(Self::Blast(Box::new(Blast::new(size)))),
                    _ => Err(format!("size={size}: not a number up to {MAX_BLAST}\n")),
                }
            }
            "/sink" => Ok(Self::Sink { messages: 0, bytes: 0 }),
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

    /// Answers a message.
    pub(crate) fn receive(
        &mut self,
        link: &mut Link,
        socket: &Socket,
        kind: MessageKind,
        payload: &Payload<'_, Vec<u8>>,
    ) -> Result<(), SendError> {
        let bytes: &[u8] = match payload {
            Payload::Slice(slice) => slice,
            Payload::Buffer(buffer) => buffer,
        };
        match self {
            Self::Echo if link.is_large(bytes.len(), None) => {
                // Piece by piece: each leaves while it is in the cache, as far as the client reads.
                let mut large = link.begin_large(kind, bytes.len())?;
                for piece in bytes.chunks(buffers::WRITE_SIZE) {
                    link.append_large(&mut large, piece);
                    let _ = link.flush(socket, Mode::NonBlocking); // a failure is kept by the link
                }
                Ok(())
            }
            Self::Echo => link.send_message(kind, bytes, None),
            Self::Sink { messages, bytes: total } => {
                if kind == MessageKind::Text {
                    let counts = format!("{{\"messages\": {messages}, \"bytes\": {total}}}");
                    return link.send_message(MessageKind::Text, counts.as_bytes(), Some(false));
                }
                *messages += 1;
                *total += bytes.len() as u64;
                Ok(())
            }
            Self::Blast(_) | Self::Close(_) => Ok(()),
        }
    }
}

impl Blast {
    fn new(size: usize) -> Self {
        let mut frame = vec![0x82]; // FIN, binary
        match size {
            0..126 => frame.push(size as u8),
            126..0x1_0000 => {
                frame.push(126);
                frame.extend_from_slice(&(size as u16).to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend_from_slice(&(size as u64).to_be_bytes());
            }
        }
        let header = frame.len();
        frame.extend((0..size).map(|j| (j & 0xFF) as u8));
        let count = (BLOCK / frame.len()).max(1);
        let payloads = (0..count).map(|i| i * frame.len() + header).collect();
        Self { block: frame.repeat(count), payloads, size, next: 0 }
    }

    /// Queues the next block.
    pub(crate) fn send(&mut self, link: &mut Link) -> Result<(), SendError> {
        let number = self.size.min(8);
        for &start in &self.payloads {
            self.block[start..start + number].copy_from_slice(&self.next.to_le_bytes()[..number]);
            self.next += 1;
        }
        let count = self.payloads.len() as u64;
        link.send_encoded(&self.block, count, count * self.size as u64, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        assert!(matches!(Role::for_target("/"), Ok(Role::Echo)));
        assert!(matches!(Role::for_target("/blast?size=100"), Ok(Role::Blast(blast)) if blast.size == 100));
        assert!(matches!(Role::for_target("/close?code=4000"), Ok(Role::Close(CloseCode(4000)))));
        assert!(matches!(Role::for_target("/sink"), Ok(Role::Sink { .. })));
        assert!(Role::for_target("/close?code=1005").is_err());
        assert!(Role::for_target("/blast?size=x").is_err());
    }

    #[test]
    fn a_block_is_numbered_frames() {
        let mut blast = Blast::new(300);
        assert_eq!(blast.block[..4], [0x82, 126, 1, 44]);
        assert_eq!(blast.block[4 + 8], 8);
        blast.next = 5;
        let start = blast.payloads[1];
        assert_eq!(start, 304 + 4);
    }
}
