//! Split models: shards `NAME-00001-of-00003.gguf`, as written by llama.cpp's `gguf-split`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::error::{Fault, Location};
use crate::metadata::Metadata;

/// Split information in the metadata of a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// Number of the shard, from 0.
    pub number: usize,
    pub count: usize,
    /// Number of tensors in all shards.
    pub tensors: Option<usize>,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "shard {} of {}", self.number + 1, self.count)
    }
}

impl Split {
    /// Reads the keys `split.*`; returns `None` if the model is in one file.
    pub fn read(metadata: &Metadata) -> Result<Option<Self>> {
        const NUMBER: &str = "split.no";
        const COUNT: &str = "split.count";
        /// File names have five digits.
        const MAX_COUNT: u32 = 99_999;
        let Some(count) = metadata.optional(COUNT, Metadata::u32)? else { return Ok(None) };
        // Some tools write 0 for models that are not split.
        if count == 0 {
            return Ok(None);
        }
        if count > MAX_COUNT {
            return Err(metadata.invalid_key(
                COUNT,
                format!("at most {MAX_COUNT}"),
                count.to_string(),
            ));
        }
        let number = metadata.u32(NUMBER)?;
        if number >= count {
            return Err(metadata.invalid_key(
                NUMBER,
                format!("a number below {count}"),
                number.to_string(),
            ));
        }
        let tensors = metadata.optional("split.tensors.count", Metadata::u32)?;
        Ok(Some(Self {
            number: number as usize,
            count: count as usize,
            tensors: tensors.map(|tensors| tensors as usize),
        }))
    }
}

/// Returns the path of shard `number`, given the path and split information of another shard.
pub(crate) fn shard_path(path: &Path, split: &Split, number: usize) -> Result<PathBuf> {
    let ending = |number: usize| format!("-{:05}-of-{:05}.gguf", number + 1, split.count);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match name.strip_suffix(&ending(split.number)) {
        Some(stem) => Ok(path.with_file_name(format!("{stem}{}", ending(number)))),
        None => {
            let expected =
                format!("a name that ends in {}, as this is {split}", ending(split.number));
            Err(Fault::new(Location::Shards, expected, name).at(path))
        }
    }
}
