//! Available memory, and settings of the system allocator.

#![allow(unsafe_code)]

/// Configures glibc's allocator to reuse freed memory instead of returning it to the system;
/// [`release_freed_memory`] still returns it. Has no effect with other allocators.
///
/// In a pass over hundreds of tokens each operation allocates megabytes. By default the allocator
/// maps and unmaps these for every operation, and the system zeroes them page by page: a fifth of
/// the time of a prompt of 512 tokens. Call this before starting threads.
pub fn retain_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: both calls pass integers only. 32 MiB is the highest mmap threshold that glibc
    // accepts; larger allocations are still mapped each time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}

/// Returns freed memory to the system. Only glibc's allocator needs this: it retains free blocks
/// between used ones, more of them the longer a process runs. Takes milliseconds, so call it when
/// idle.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes no pointer, and is thread-safe.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the number of bytes that can be allocated without swapping, if the system reports it:
/// the minimum over the machine and the container.
pub fn available_memory() -> Option<u64> {
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
    // Current usage includes cached files, which the system drops under memory pressure.
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
    fn reports_available_memory_on_linux() {
        let bytes = available_memory().unwrap();
        assert!(bytes > 1 << 24, "{bytes}");
    }
}
