//! Models in several files: `NAME-00001-of-00003.gguf`, as llama.cpp's `gguf-split` writes them.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::error::{Fault, Location};
use crate::metadata::Metadata;

/// What a part says about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// From 0.
    pub number: usize,
    pub count: usize,
    /// In all parts together.
    pub tensors: Option<usize>,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "part {} of {}", self.number + 1, self.count)
    }
}

impl Split {
    /// From the keys `split.*`; none if the model is in one file.
    pub fn read(metadata: &Metadata) -> Result<Option<Self>> {
        const NUMBER: &str = "split.no";
        const COUNT: &str = "split.count";
        /// Names have five digits.
        const MOST: u32 = 99_999;
        let Some(count) = metadata.optional(COUNT, Metadata::u32)? else { return Ok(None) };
        // 0 is what some tools write where nothing was split.
        if count == 0 {
            return Ok(None);
        }
        if count > MOST {
            return Err(metadata.wrong(COUNT, format!("at most {MOST}"), count.to_string()));
        }
        let number = metadata.u32(NUMBER)?;
        if number >= count {
            return Err(metadata.wrong(
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

/// The path of part `number`, from that of the part which `split` describes.
pub(crate) fn part_path(path: &Path, split: &Split, number: usize) -> Result<PathBuf> {
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
