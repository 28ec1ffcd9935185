//! File format of tables: a magic line, a line of JSON, and little-endian numbers: for each context
//! length its hashes, visits, follower counts, followers and their shares.

use serde::{Deserialize, Serialize};

use super::{NgramTable, Order, SHARE_UNIT, TABLE_ORDER};
use crate::{Error, Result};

/// Magic line at the start of the file.
const MAGIC: &[u8] = b"polydraft n-grams 1\n";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// Number of tokens in the vocabulary, and a hash of their strings as hexadecimal digits.
    tokens: usize,
    vocabulary: String,
    learned: u64,
    /// Numbers of contexts and of followers, by context length.
    orders: Vec<[usize; 2]>,
}

/// The numbers not read yet.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const N: usize, T>(
        &mut self,
        count: usize,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let bytes = count.checked_mul(N).and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = bytes.ok_or_else(|| invalid_table("the file ends too early"))?;
        self.0 = rest;
        Ok(taken.as_chunks().0.iter().map(|bytes| decode(*bytes)).collect())
    }
}

impl NgramTable {
    /// Returns whether a file that begins with these bytes is a table.
    pub fn is_table(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Number of bytes that [`is_table`](Self::is_table) needs.
    pub const MAGIC_LENGTH: usize = MAGIC.len();

    /// Encodes the table as a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let sizes = |order: &Order| [order.keys.len(), order.tokens.len()];
        let header = Header {
            tokens: self.vocabulary.0,
            vocabulary: format!("{:016x}", self.vocabulary.1),
            learned: self.learned,
            orders: self.orders.iter().map(sizes).collect(),
        };
        let mut bytes = MAGIC.to_vec();
        // Serializing numbers and a string cannot fail.
        bytes.extend(serde_json::to_vec(&header).unwrap_or_default());
        bytes.push(b'\n');
        for Order { keys, visits, ends, tokens, shares } in &self.orders {
            bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
            bytes.extend(visits.iter().flat_map(|visits| visits.to_le_bytes()));
            let begins = [0].into_iter().chain(ends.iter().copied());
            bytes.extend(begins.zip(ends).map(|(begin, end)| (end - begin) as u8));
            bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
            bytes.extend(shares.iter().flat_map(|share| share.to_le_bytes()));
        }
        bytes
    }

    /// Decodes a table from the bytes of a file.
    ///
    /// # Errors
    /// Bytes that are not a table, or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or_else(|| invalid_table("the file is no table of n-grams"))?;
        let end = rest.iter().take(1 << 16).position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| invalid_table("the second line does not end"))?;
        let header: Header = serde_json::from_slice(&rest[..end])
            .map_err(|error| invalid_table(&error.to_string()))?;
        if !(1..=TABLE_ORDER + 1).contains(&header.orders.len()) {
            return Err(invalid_table("expected contexts of 1 to 5 lengths"));
        }
        let hash = u64::from_str_radix(&header.vocabulary, 16);
        let hash = hash.map_err(|_| invalid_table("vocabulary: expected hexadecimal digits"))?;
        let mut numbers = Numbers(&rest[end + 1..]);
        let mut orders = Vec::new();
        for [contexts, followers] in header.orders {
            orders.push(read_order(&mut numbers, contexts, followers, header.tokens)?);
        }
        if !numbers.0.is_empty() {
            return Err(invalid_table("unexpected bytes at the end"));
        }
        Ok(Self { vocabulary: (header.tokens, hash), learned: header.learned, orders })
    }
}

fn read_order(
    numbers: &mut Numbers<'_>,
    contexts: usize,
    followers: usize,
    vocabulary: usize,
) -> Result<Order> {
    let keys = numbers.take(contexts, u64::from_le_bytes)?;
    let visits = numbers.take(contexts, u32::from_le_bytes)?;
    let counts = numbers.take(contexts, |[count]| u32::from(count))?;
    let tokens = numbers.take(followers, u32::from_le_bytes)?;
    let shares = numbers.take(followers, u16::from_le_bytes)?;
    let mut end = 0_u32;
    let mut next = |count: u32| {
        end = end.saturating_add(count);
        end
    };
    let ends: Vec<u32> = counts.into_iter().map(&mut next).collect();
    if end as usize != followers {
        return Err(invalid_table("the numbers of followers do not sum up to the total"));
    }
    if !keys.is_sorted_by(|a, b| a < b) {
        return Err(invalid_table("the contexts are not sorted"));
    }
    if visits.contains(&0) || shares.contains(&0) {
        return Err(invalid_table("a context with 0 visits, or a follower with share 0"));
    }
    let mut begin = 0;
    for &end in &ends {
        let followers_of_context = &tokens[begin..end as usize];
        let sum: f64 = shares[begin..end as usize].iter().map(|share| f64::from(*share)).sum();
        if sum > SHARE_UNIT + followers_of_context.len() as f64 {
            return Err(invalid_table("the followers of a context exceed its visits"));
        }
        let is_known = followers_of_context.last().is_none_or(|last| (*last as usize) < vocabulary);
        if !is_known || !followers_of_context.is_sorted_by(|a, b| a < b) {
            return Err(invalid_table("followers are not sorted, or outside the vocabulary"));
        }
        begin = end as usize;
    }
    Ok(Order { keys, visits, ends, tokens, shares })
}

fn invalid_table(problem: &str) -> Error {
    Error::NgramTable { problem: problem.to_owned() }
}
