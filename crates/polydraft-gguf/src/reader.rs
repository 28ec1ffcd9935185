//! Reader of the header. It allocates memory for a header in proportion to the bytes that were
//! read.
//!
//! Every length in the file is compared with the rest of the file before memory is allocated for
//! it.

use std::ops::Range;

use crate::Result;
use crate::error::{Error, Fault, Location};
use crate::source::Source;

/// Maximum length of a header in bytes. The longest known ones, with 262,144 tokens, have 10
/// million.
const MAX_HEADER: u64 = 1 << 28;
/// Minimum number of bytes to read at a time.
const MIN_READ: usize = 1 << 18;

/// The bytes read so far, with the current position.
pub(crate) struct Reader<'s> {
    source: &'s Source,
    bytes: Vec<u8>,
    at: usize,
}

impl<'s> Reader<'s> {
    pub fn new(source: &'s Source) -> Self {
        Self { source, bytes: Vec::new(), at: 0 }
    }

    /// Returns the number of bytes of the file after the current position.
    pub fn left(&self) -> u64 {
        self.source.length - self.at as u64
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn fault(&self, fault: Fault) -> Error {
        fault.at(&self.source.path)
    }

    /// Reads `count` bytes; returns their range in [`bytes`](Self::bytes).
    pub fn take(&mut self, count: u64, location: &dyn Fn() -> Location) -> Result<Range<usize>> {
        if count > self.left() {
            let got = format!("a file with {} left of its {}", self.left(), self.source.length);
            let fault = Fault::new(location(), format!("{count} more bytes"), got);
            return Err(self.fault(fault.incomplete()));
        }
        // Cannot overflow: at most the length of the file.
        let end = self.at as u64 + count;
        if end > MAX_HEADER {
            let expected = format!("a header of at most {MAX_HEADER} bytes");
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
        let read = self.bytes.len();
        if end <= read {
            return Ok(());
        }
        // Double the buffer each time, so that copying is linear in total, up to the length of the
        // file.
        let max = self.source.length.min(MAX_HEADER) as usize;
        let wanted = end.max(read + MIN_READ).max(2 * read).min(max);
        self.bytes.reserve_exact(wanted - read);
        self.bytes.resize(wanted, 0);
        self.source.read(read as u64, &mut self.bytes[read..])
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

    /// Reads a string; returns the range of its bytes.
    pub fn string(
        &mut self,
        max_length: u64,
        location: &dyn Fn() -> Location,
    ) -> Result<Range<usize>> {
        let length = self.u64(location)?;
        if length > max_length {
            let fault = Fault::new(
                location(),
                format!("a string of at most {max_length} bytes"),
                format!("{length}"),
            );
            return Err(self.fault(fault));
        }
        self.take(length, location)
    }

    /// Returns the bytes up to the current position.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.at);
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

/// Returns the first `N` bytes; zeros if there are fewer, which no caller allows.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}
