//! What the operating system says of memory, and what its allocator is asked to do with it.

#![allow(unsafe_code)]

/// Asks glibc's allocator to keep memory that is not in use, for programs whose business are
/// models; [`give_back_memory`] still gives it back. What an operation of a pass over hundreds of
/// tokens gives is megabytes: the allocator has the system take those away and bring them anew,
/// page by page and cleared, for every operation, in a prompt of 512 tokens a fifth of its time. To
/// be called before there are threads.
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
pub fn available_memory() -> Option<u64> {
    // A container may be given less than the machine has.
    match (system_memory(), container_memory()) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
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
    #[cfg(target_os = "linux")]
    fn memory_is_known() {
        let bytes = available_memory().unwrap();
        assert!(bytes > 1 << 24, "{bytes}");
    }
}
