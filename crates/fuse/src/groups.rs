//! Groups of processes.

/// The supplementary groups of a thread, as they are in this process's namespace; none if it has
/// ended.
pub(crate) fn groups_of(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    groups_in(&status)
}

fn groups_in(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_status_file() {
        assert_eq!(groups_in("Name:\tcat\nGroups:\t4 24 1000 \nKthread:\t0\n"), [4, 24, 1000]);
        assert_eq!(groups_in("Name:\tcat\nGroups:\t \n"), Vec::<u32>::new());
    }
}
