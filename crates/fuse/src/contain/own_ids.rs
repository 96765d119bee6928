//! Which users and groups exist in a process's own user namespace (user_namespaces(7)).

use crate::ids::{IdMap, IdRange, IdRanges};
use std::fs;
use std::io::{Error, ErrorKind};
use std::process::{Command, Stdio};
use thiserror::Error;

/// Why a namespace got no ids.
#[derive(Debug, Error)]
#[error("users of a namespace of its own: {0}")]
pub struct IdError(Error);

/// The ids that a namespace got.
#[derive(Clone, Debug)]
pub struct OwnIds {
    /// The ids that exist inside.
    pub map: IdMap,
    /// Why only the user's own id exists inside, although more would have been possible.
    pub refused: Option<String>,
}

/// Users or groups.
struct Kind {
    /// Name of the file `/proc/PID/NAME` that sets the map.
    map: &'static str,
    helper: &'static str,
    ranges: &'static str,
    own: u32,
}

fn users() -> Kind {
    let own = rustix::process::geteuid().as_raw();
    Kind { map: "uid_map", helper: "newuidmap", ranges: "/etc/subuid", own }
}

fn groups() -> Kind {
    let own = rustix::process::getegid().as_raw();
    Kind { map: "gid_map", helper: "newgidmap", ranges: "/etc/subgid", own }
}

impl OwnIds {
    /// Gives a process that has entered a new user namespace as many ids as this one can: all that
    /// exist here, if this is root; the ranges of /etc/subuid and /etc/subgid, if newuidmap and
    /// newgidmap are installed; or this user's own, as root's.
    ///
    /// # Errors
    /// The kernel refuses even that.
    pub fn give_to(process: u32) -> Result<Self, IdError> {
        let kinds = [users(), groups()];
        if rustix::process::geteuid().is_root() {
            let IdMap { users, groups } = own_map();
            if write_map(process, &kinds[0], &users).is_ok() {
                write_map(process, &kinds[1], &groups).map_err(IdError)?;
                return Ok(Self { map: IdMap { users, groups }, refused: None });
            }
        }
        let mut refused = None;
        if let [Some(users), Some(groups)] = kinds.each_ref().map(subordinate) {
            match run_helper(process, &kinds[0], &users) {
                Ok(()) => {
                    run_helper(process, &kinds[1], &groups).map_err(IdError)?;
                    return Ok(Self { map: IdMap { users, groups }, refused: None });
                }
                Err(error) => refused = Some(error.to_string()),
            }
        }
        let [users, groups] = kinds.each_ref().map(single);
        // Otherwise a process could drop a group whose members are denied access to a file.
        fs::write(format!("/proc/{process}/setgroups"), "deny").map_err(IdError)?;
        write_map(process, &kinds[0], &users).map_err(IdError)?;
        write_map(process, &kinds[1], &groups).map_err(IdError)?;
        Ok(Self { map: IdMap { users, groups }, refused })
    }
}

/// All ids of this process's own namespace.
pub fn own_map() -> IdMap {
    let [users, groups] = [users(), groups()].map(|kind| existing(kind.map));
    IdMap { users, groups }
}

fn existing(map: &str) -> IdRanges {
    let text = fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
    let range = |line: &str| {
        let mut words = line.split_whitespace().map(str::parse);
        let (Some(Ok(first)), Some(_), Some(Ok(count))) = (words.next(), words.next(), words.next()) else {
            return None;
        };
        Some(IdRange::same(first, count))
    };
    IdRanges(text.lines().filter_map(range).collect())
}

fn single(kind: &Kind) -> IdRanges {
    IdRanges(vec![IdRange { inside: 0, outside: kind.own, count: 1 }])
}

/// The user's own id as root's, and all ranges that the administrator has set aside; `None` if
/// there are none.
fn subordinate(kind: &Kind) -> Option<IdRanges> {
    let user = rustix::process::geteuid().as_raw();
    let name = fs::read_to_string("/etc/passwd").ok().and_then(|text| name_of(&text, user));
    let ranges = set_aside(&fs::read_to_string(kind.ranges).ok()?, name.as_deref(), user);
    let mut all = single(kind);
    let mut inside = 1_u32;
    for (outside, count) in ranges {
        all.0.push(IdRange { inside, outside, count });
        inside = inside.checked_add(count)?;
    }
    (all.0.len() > 1).then_some(all)
}

/// The name of a user in `/etc/passwd`.
fn name_of(passwd: &str, user: u32) -> Option<String> {
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&user.to_string()))?;
    line.split(':').next().map(str::to_owned)
}

/// A user's lines of `/etc/subuid` (subuid(5)): first ids and counts.
fn set_aside(text: &str, name: Option<&str>, user: u32) -> Vec<(u32, u32)> {
    let number = user.to_string();
    let range = |line: &str| {
        let mut words = line.trim().split(':');
        let of = words.next().filter(|of| Some(*of) == name || *of == number)?;
        let range = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (!of.is_empty() && range.1 > 0).then_some(range)
    };
    text.lines().filter_map(range).collect()
}

fn write_map(process: u32, kind: &Kind, ranges: &IdRanges) -> std::io::Result<()> {
    let line = |range: &IdRange| format!("{} {} {}\n", range.inside, range.outside, range.count);
    // The kernel accepts only a single write with the whole map.
    let text: String = ranges.0.iter().map(line).collect();
    fs::write(format!("/proc/{process}/{}", kind.map), text)
}

fn run_helper(process: u32, kind: &Kind, ranges: &IdRanges) -> std::io::Result<()> {
    let words = ranges.0.iter().flat_map(|range| [range.inside, range.outside, range.count]);
    let mut command = Command::new(kind.helper);
    command.arg(process.to_string()).args(words.map(|word| word.to_string()));
    let told = |words: String| Error::other(format!("{}: {words}", kind.helper));
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => told("is not installed; install it with: apt-get install uidmap".into()),
        _ => told(error.to_string()),
    })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(told(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_user_by_name_or_number() {
        let text = "root:1:2\nada:100000:65536\n1000:300000:10\n\nada:bad\nadam:5:5\nada:7:0\n";
        assert_eq!(set_aside(text, Some("ada"), 1000), [(100_000, 65_536), (300_000, 10)]);
        assert_eq!(set_aside(text, None, 1000), [(300_000, 10)]);
        assert!(set_aside(text, Some("eve"), 5).is_empty());
        let passwd = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_of(passwd, 1), None);
    }

    #[test]
    fn this_process_has_an_id() {
        assert!(existing("uid_map").inside(rustix::process::geteuid().as_raw()).is_some());
    }
}
