//! A simple codec of frames after the diagram of RFC 6455 5.2.

/// A frame whose fields can have any value, even invalid ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub fin: bool,
    /// RSV1 = 4, RSV2 = 2, RSV3 = 1.
    pub rsv: u8,
    pub opcode: u8,
    pub key: Option<[u8; 4]>,
    pub payload: Vec<u8>,
}

pub const CONTINUATION: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// The encoding of the payload length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthForm {
    Short,
    Two,
    Eight,
}

impl Frame {
    pub fn new(opcode: u8, payload: impl AsRef<[u8]>) -> Self {
        Self { fin: true, rsv: 0, opcode, key: None, payload: payload.as_ref().to_vec() }
    }

    pub fn text(payload: impl AsRef<[u8]>) -> Self {
        Self::new(TEXT, payload)
    }

    pub fn binary(payload: impl AsRef<[u8]>) -> Self {
        Self::new(BINARY, payload)
    }

    pub fn continuation(payload: impl AsRef<[u8]>) -> Self {
        Self::new(CONTINUATION, payload)
    }

    pub fn ping(payload: impl AsRef<[u8]>) -> Self {
        Self::new(PING, payload)
    }

    pub fn pong(payload: impl AsRef<[u8]>) -> Self {
        Self::new(PONG, payload)
    }

    pub fn close(code: u16, reason: &str) -> Self {
        Self::new(CLOSE, [&code.to_be_bytes(), reason.as_bytes()].concat())
    }

    /// Clears FIN: the frame is not the last of its message.
    pub fn open(self) -> Self {
        Self { fin: false, ..self }
    }

    pub fn rsv(self, rsv: u8) -> Self {
        Self { rsv, ..self }
    }

    pub fn masked(self, key: [u8; 4]) -> Self {
        Self { key: Some(key), ..self }
    }

    pub fn shortest_form(&self) -> LengthForm {
        match self.payload.len() {
            0..=125 => LengthForm::Short,
            126..=65535 => LengthForm::Two,
            _ => LengthForm::Eight,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(self.shortest_form())
    }

    pub fn encode_as(&self, form: LengthForm) -> Vec<u8> {
        let mut bytes = header(self.fin, self.rsv, self.opcode, self.key, self.payload.len() as u64, form);
        for (index, byte) in self.payload.iter().enumerate() {
            bytes.push(match self.key {
                Some(key) => byte ^ key[index % 4],
                None => *byte,
            });
        }
        bytes
    }

    /// Decodes the frame at the start of `bytes`. Returns it with the bytes after it, or `None` if it is incomplete.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let first = *bytes.first()?;
        let second = *bytes.get(1)?;
        let mut at = 2;
        let mut take = |count: usize| {
            let field = bytes.get(at..at + count)?;
            at += count;
            Some(field)
        };
        let mut length = u64::from(second & 127);
        if length >= 126 {
            length = take(if length == 126 { 2 } else { 8 })?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
        let key = if second & 128 != 0 { Some(<[u8; 4]>::try_from(take(4)?).unwrap()) } else { None };
        let mut payload = take(usize::try_from(length).ok()?)?.to_vec();
        if let Some(key) = key {
            for (index, byte) in payload.iter_mut().enumerate() {
                *byte ^= key[index % 4];
            }
        }
        let frame = Self { fin: first & 128 != 0, rsv: first >> 4 & 7, opcode: first & 15, key, payload };
        Some((frame, &bytes[at..]))
    }

    /// Decodes all frames of a stream that ends after a frame.
    pub fn decode_all(mut bytes: &[u8]) -> Vec<Self> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (frame, rest) = Self::decode(bytes).expect("a stream of whole frames");
            assert_eq!(frame.encode(), &bytes[..bytes.len() - rest.len()], "a length that is not in its shortest form");
            frames.push(frame);
            bytes = rest;
        }
        frames
    }
}

/// Encodes a header without a payload.
pub fn header(fin: bool, rsv: u8, opcode: u8, key: Option<[u8; 4]>, length: u64, form: LengthForm) -> Vec<u8> {
    let mut bytes = vec![u8::from(fin) << 7 | rsv << 4 | opcode];
    let masked = u8::from(key.is_some()) << 7;
    match form {
        LengthForm::Short => bytes.push(masked | length as u8),
        LengthForm::Two => {
            bytes.push(masked | 126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        LengthForm::Eight => {
            bytes.push(masked | 127);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
    bytes.extend(key.into_iter().flatten());
    bytes
}
