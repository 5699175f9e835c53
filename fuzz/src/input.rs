//! [`Input`]: reads decisions from the front of a fuzz input. After its end all decisions are 0.

use crate::support::Rng;

pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    pub(crate) fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    pub(crate) fn number(&mut self) -> u16 {
        u16::from(self.byte()) << 8 | u16::from(self.byte())
    }

    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (front, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        front
    }

    /// Returns one of the items.
    pub(crate) fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[usize::from(self.byte()) % from.len()]
    }

    /// Returns fewer than `most` of the words, concatenated.
    pub(crate) fn words(&mut self, most: u8, from: &[&str]) -> String {
        (0..self.below(most)).map(|_| *self.pick(from)).collect()
    }

    /// Returns a payload: bytes of the input, or a longer payload that is generated from its next bytes.
    pub(crate) fn payload(&mut self) -> Vec<u8> {
        match self.byte() {
            len @ 0..200 => self.take(usize::from(len)).to_vec(),
            200..215 => Rng::new(u64::from(self.byte())).prose(usize::from(self.number() & 0x0FFF)),
            215..230 => Rng::new(u64::from(self.byte())).bytes(usize::from(self.number() & 0x0FFF)),
            230..254 => vec![self.byte(); usize::from(self.number() & 0x0FFF)],
            _ => vec![self.byte(); usize::from(self.number()) + 1000],
        }
    }
}

/// Splits the bytes into pieces of random length, often short and sometimes empty.
pub(crate) fn pieces<'a>(bytes: &'a [u8], rng: &mut Rng) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let bound = [3, 20, 2000][rng.below(3)];
        let (piece, behind) = rest.split_at(rng.below(bound).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}
