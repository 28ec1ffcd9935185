//! Where to compute, and how much memory there is.

use std::fmt;
use std::str::FromStr;

use candle_core::Device;

use crate::{Error, Result};

/// Where to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceName {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA card, by number. Needs a program built with the feature `cuda`.
    Cuda(usize),
    /// An Apple card, by number. Needs a program built with the feature `metal`.
    Metal(usize),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Metal(number) => write!(f, "metal:{number}"),
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("expected cpu, cuda, cuda:N or metal, got {name:?}");
        let (kind, number) = match name.split_once(':') {
            None => (name, 0),
            Some((kind, number)) => (kind, number.parse().map_err(|_| wrong())?),
        };
        match kind {
            "cpu" if !name.contains(':') => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(number)),
            "metal" => Ok(Self::Metal(number)),
            _ => Err(wrong()),
        }
    }
}

impl DeviceName {
    /// # Errors
    /// A device that this program was not built for or that is not there.
    pub(crate) fn open(self) -> Result<Device> {
        let (feature, built, open): (_, _, fn(usize) -> candle_core::Result<Device>) = match self {
            Self::Cpu => return Ok(Device::Cpu),
            Self::Cuda(_) => ("cuda", cfg!(feature = "cuda"), Device::new_cuda),
            Self::Metal(_) => ("metal", cfg!(feature = "metal"), Device::new_metal),
        };
        if !built {
            return Err(Error::NotBuilt { device: self, feature });
        }
        let number = match self {
            Self::Cpu => 0,
            Self::Cuda(number) | Self::Metal(number) => number,
        };
        open(number).map_err(|source| Error::Device { device: self, problem: source.to_string() })
    }
}

/// Asks glibc's allocator to keep memory that is not in use, for programs whose business are
/// models; [`give_back_memory`] still gives it back. What an operation of a pass over hundreds of
/// rows gives is megabytes: the allocator has the system take those away and bring them anew, page
/// by page and cleared, for every operation, in a prompt of 512 tokens a fifth of its time. To be
/// called before there are threads.
pub fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: two numbers. Beyond 32 MiB memory comes from the system each time: glibc knows no
    // higher limit.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}

/// Gives memory that is not in use back to the system, where its allocator keeps what it was given:
/// that of glibc does, in pieces between what is in use, and the more of them the longer it runs.
/// Takes milliseconds: for when nobody waits.
pub fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that can be had without pushing anything else out of memory, where the system says.
pub fn available_memory(device: DeviceName) -> Option<u64> {
    match device {
        DeviceName::Cpu => {
            let system = system_memory();
            // A container may be given less than the machine has.
            match (system, container_memory()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        DeviceName::Cuda(_) | DeviceName::Metal(_) => None,
    }
}

fn system_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

fn container_memory() -> Option<u64> {
    let read = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok()?.trim().parse().ok()
    };
    // What is used counts files that were read, which go when the memory is needed.
    let files = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").ok();
    let files = files.and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
        line.trim().parse::<u64>().ok()
    });
    Some((read("max")? + files.unwrap_or(0)).saturating_sub(read("current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, place) in [
            ("cpu", DeviceName::Cpu),
            ("cuda", DeviceName::Cuda(0)),
            ("cuda:3", DeviceName::Cuda(3)),
            ("metal", DeviceName::Metal(0)),
        ] {
            assert_eq!(name.parse(), Ok(place));
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for name in ["", "gpu", "cuda:", "cuda:x", "cpu:1", "CPU", "cuda:-1"] {
            assert!(name.parse::<DeviceName>().unwrap_err().contains("cuda:N"), "{name}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_is_known() {
        let bytes = available_memory(DeviceName::Cpu).unwrap();
        assert!(bytes > 1 << 24, "{bytes}");
    }
}
