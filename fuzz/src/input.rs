//! Takes decisions from the front of the input. Where it ends, every decision is 0.

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

    /// One of these.
    pub(crate) fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[usize::from(self.byte()) % from.len()]
    }

    /// Some of these, fewer than `most`, one behind the other.
    pub(crate) fn words(&mut self, most: u8, from: &[&str]) -> String {
        (0..self.below(most)).map(|_| *self.pick(from)).collect()
    }

    /// A payload: bytes from the input, or many that its next bytes stand for.
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

/// Pieces of random length, short ones often, empty ones sometimes.
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
