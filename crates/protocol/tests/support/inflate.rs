//! A simple inflater after RFC 1951, which works bit by bit and measures how far a stream refers back.

/// The bytes that are removed from the end of a compressed message (RFC 7692 7.2.1).
pub const TAIL: [u8; 4] = [0, 0, 0xFF, 0xFF];

const LENGTH_BASE: [usize; 29] =
    [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_EXTRA: [u32; 29] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const DISTANCE_BASE: [usize; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145,
    8193, 12289, 16385, 24577,
];
const DISTANCE_EXTRA: [u32; 30] =
    [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
const CODE_ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Inflates messages, with all its output as the window.
#[derive(Clone, Debug, Default)]
pub struct Inflater {
    /// All output since the last reset.
    pub history: Vec<u8>,
    /// The largest distance of a match so far.
    pub reach: usize,
}

impl Inflater {
    /// Clears the window.
    pub fn reset(&mut self) {
        self.history.clear();
    }

    /// Inflates the payload of a compressed message, whose tail was removed.
    pub fn message(&mut self, payload: &[u8]) -> Result<Vec<u8>, &'static str> {
        let bytes = [payload, &TAIL].concat();
        self.blocks(&bytes)
    }

    /// Inflates blocks up to the end of `bytes`, which must be the end of a block.
    pub fn blocks(&mut self, bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
        let mut bits = Bits { bytes, at: 0 };
        let mut output = Vec::new();
        while bits.at.div_ceil(8) < bytes.len() {
            let last = bits.take(1)? == 1;
            let start = self.history.len();
            match bits.take(2)? {
                0 => self.stored(&mut bits)?,
                1 => self.compressed(&mut bits, &fixed_literals()?, &codes(&[5; 32])?)?,
                2 => {
                    let (literals, distances) = dynamic(&mut bits)?;
                    self.compressed(&mut bits, &literals, &distances)?;
                }
                _ => return Err("block type 3"),
            }
            output.extend_from_slice(&self.history[start..]);
            if last {
                bits.align();
                self.history.clear();
            }
        }
        Ok(output)
    }

    fn stored(&mut self, bits: &mut Bits<'_>) -> Result<(), &'static str> {
        bits.align();
        let length = bits.take(16)?;
        if bits.take(16)? != length ^ 0xFFFF {
            return Err("stored length");
        }
        for _ in 0..length {
            let byte = bits.take(8)? as u8;
            self.history.push(byte);
        }
        Ok(())
    }

    fn compressed(&mut self, bits: &mut Bits<'_>, literals: &Codes, distances: &Codes) -> Result<(), &'static str> {
        loop {
            match bits.symbol(literals)? {
                literal @ 0..=255 => self.history.push(literal as u8),
                256 => return Ok(()),
                symbol => {
                    let index = symbol - 257;
                    let (base, extra) = (LENGTH_BASE.get(index), LENGTH_EXTRA.get(index));
                    let length = base.ok_or("length symbol")? + bits.take(*extra.ok_or("length symbol")?)? as usize;
                    let index = bits.symbol(distances)?;
                    let (base, extra) = (DISTANCE_BASE.get(index), DISTANCE_EXTRA.get(index));
                    let distance =
                        base.ok_or("distance symbol")? + bits.take(*extra.ok_or("distance symbol")?)? as usize;
                    if distance > self.history.len() {
                        return Err("distance before the start");
                    }
                    self.reach = self.reach.max(distance);
                    for _ in 0..length {
                        self.history.push(self.history[self.history.len() - distance]);
                    }
                }
            }
        }
    }
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: u32) -> Result<u32, &'static str> {
        let mut value = 0;
        for position in 0..count {
            let byte = self.bytes.get(self.at / 8).ok_or("end of input")?;
            value |= u32::from(byte >> (self.at % 8) & 1) << position;
            self.at += 1;
        }
        Ok(value)
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }

    fn symbol(&mut self, codes: &Codes) -> Result<usize, &'static str> {
        let mut code = 0;
        for length in 1..=15 {
            code = code << 1 | self.take(1)?;
            match codes.get(1 << length | code as usize) {
                Some(&NONE) => {}
                Some(symbol) => return Ok(usize::from(*symbol)),
                None => break,
            }
        }
        Err("no such code")
    }
}

/// Maps each code, with a one bit in front, to its symbol.
type Codes = Vec<u16>;

const NONE: u16 = u16::MAX;

/// Builds the codes from their lengths (RFC 1951 3.2.2). As in zlib, incomplete codes are rejected, except a single code
/// (3.2.7).
fn codes(lengths: &[u8]) -> Result<Codes, &'static str> {
    let used: u32 = lengths.iter().filter(|length| **length > 0).map(|length| 1 << (15 - length)).sum();
    let single = lengths.iter().all(|length| *length <= 1) && used <= 1 << 14;
    if used != 1 << 15 && !single {
        return Err("a set of codes that is not complete");
    }
    let mut codes = vec![NONE; 2 << lengths.iter().max().unwrap()];
    let mut code = 0_usize;
    for length in 1..=*lengths.iter().max().unwrap() {
        for (symbol, _) in lengths.iter().enumerate().filter(|(_, l)| **l == length) {
            codes[1 << length | code] = symbol as u16;
            code += 1;
        }
        code <<= 1;
    }
    Ok(codes)
}

fn fixed_literals() -> Result<Codes, &'static str> {
    let mut lengths = [8; 288];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    codes(&lengths)
}

/// Reads the codes of a block with dynamic codes (RFC 1951 3.2.7).
fn dynamic(bits: &mut Bits<'_>) -> Result<(Codes, Codes), &'static str> {
    let literal_count = bits.take(5)? as usize + 257;
    let distance_count = bits.take(5)? as usize + 1;
    if literal_count > 286 || distance_count > 30 {
        return Err("too many symbols");
    }
    let mut lengths = [0; 19];
    for index in 0..bits.take(4)? as usize + 4 {
        lengths[CODE_ORDER[index]] = bits.take(3)? as u8;
    }
    let code_lengths = codes(&lengths)?;
    let mut lengths: Vec<u8> = Vec::new();
    while lengths.len() < literal_count + distance_count {
        let (value, count) = match bits.symbol(&code_lengths)? {
            16 => (*lengths.last().ok_or("nothing to repeat")?, bits.take(2)? + 3),
            17 => (0, bits.take(3)? + 3),
            18 => (0, bits.take(7)? + 11),
            length => (length as u8, 1),
        };
        lengths.extend(std::iter::repeat_n(value, count as usize));
    }
    if lengths.len() > literal_count + distance_count {
        return Err("too many lengths");
    }
    let (literals, distances) = lengths.split_at(literal_count);
    if literals[256] == 0 {
        return Err("no end of block");
    }
    Ok((codes(literals)?, codes(distances)?))
}

/// Writes a block with matches at chosen distances.
#[derive(Default)]
pub struct FixedBlock {
    bits: Vec<bool>,
}

impl FixedBlock {
    pub fn new() -> Self {
        let mut block = Self::default();
        block.put(0, 1);
        block.put(1, 2);
        block
    }

    pub fn literal(mut self, byte: u8) -> Self {
        let byte = u32::from(byte);
        if byte < 144 {
            self.code(0x30 + byte, 8);
        } else {
            self.code(0x190 + byte - 144, 9);
        }
        self
    }

    /// Adds a match of three bytes.
    pub fn back(mut self, distance: usize) -> Self {
        self.code(1, 7); // symbol 257: length 3
        let index = DISTANCE_BASE.iter().rposition(|base| *base <= distance).unwrap();
        self.code(index as u32, 5);
        self.put((distance - DISTANCE_BASE[index]) as u32, DISTANCE_EXTRA[index]);
        self
    }

    /// Ends the block and flushes it, without the tail.
    pub fn finish(mut self) -> Vec<u8> {
        self.code(0, 7);
        self.put(0, 3);
        self.bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | u8::from(*bit))).collect()
    }

    fn put(&mut self, value: u32, count: u32) {
        self.bits.extend((0..count).map(|position| value >> position & 1 == 1));
    }

    fn code(&mut self, code: u32, length: u32) {
        self.bits.extend((0..length).rev().map(|position| code >> position & 1 == 1));
    }
}

/// Returns `data` in flushed blocks of type 00, without the tail.
pub fn stored(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for block in data.chunks(65535) {
        let length = block.len() as u16;
        out.push(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.push(0);
    out
}
