//! Reads a header from the front of a file, and no byte more than it must hold.
//!
//! Every length in the file is compared with what is left of it before memory is taken for it.

use std::ops::Range;

use crate::Result;
use crate::error::{Error, Fault, Location};
use crate::source::Source;

/// The longest header that is read. The longest real ones, with 262,144 tokens, have 10 million
/// bytes.
const LONGEST: u64 = 1 << 28;
/// Bytes that are read at once.
const PIECE: usize = 1 << 18;

/// What has been read so far, and where in it we are.
pub(crate) struct Reader<'s> {
    source: &'s Source,
    bytes: Vec<u8>,
    at: usize,
}

impl<'s> Reader<'s> {
    pub fn new(source: &'s Source) -> Self {
        Self { source, bytes: Vec::new(), at: 0 }
    }

    /// Bytes after this place.
    pub fn left(&self) -> u64 {
        self.source.length - self.at as u64
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn fault(&self, fault: Fault) -> Error {
        fault.at(&self.source.path)
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: u64, location: &dyn Fn() -> Location) -> Result<Range<usize>> {
        if count > self.left() {
            let got = format!("a file with {} left of its {}", self.left(), self.source.length);
            return Err(self.fault(Fault::new(location(), format!("{count} more bytes"), got)));
        }
        // Cannot overflow: it is no more than the file's length.
        let end = self.at as u64 + count;
        if end > LONGEST {
            let expected = format!("a header of at most {LONGEST} bytes");
            return Err(self.fault(Fault::new(
                location(),
                expected,
                format!("one of at least {end}"),
            )));
        }
        let range = self.at..end as usize;
        self.fill(range.end)?;
        self.at = range.end;
        Ok(range)
    }

    fn fill(&mut self, end: usize) -> Result<()> {
        let there = self.bytes.len();
        if end <= there {
            return Ok(());
        }
        // Twice as much each time, so that all copying together stays linear; never more than the
        // file has.
        let most = self.source.length.min(LONGEST) as usize;
        let wanted = end.max(there + PIECE).max(2 * there).min(most);
        self.bytes.reserve_exact(wanted - there);
        self.bytes.resize(wanted, 0);
        self.source.read(there as u64, &mut self.bytes[there..])
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    pub fn u32(&mut self, location: &dyn Fn() -> Location) -> Result<u32> {
        let range = self.take(4, location)?;
        Ok(u32::from_le_bytes(array(&self.bytes[range])))
    }

    pub fn u64(&mut self, location: &dyn Fn() -> Location) -> Result<u64> {
        let range = self.take(8, location)?;
        Ok(u64::from_le_bytes(array(&self.bytes[range])))
    }

    /// A string's bytes, after their number.
    pub fn string(
        &mut self,
        longest: u64,
        location: &dyn Fn() -> Location,
    ) -> Result<Range<usize>> {
        let length = self.u64(location)?;
        if length > longest {
            let fault = Fault::new(
                location(),
                format!("a string of at most {longest} bytes"),
                format!("{length}"),
            );
            return Err(self.fault(fault));
        }
        self.take(length, location)
    }

    /// What was read, up to this place.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.at);
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

/// The first `N` bytes; zeros where there are fewer, which no caller lets happen.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}
