//! Times of access, with `relatime` and without.

use crate::bed::{Bed, can_mount};
use crate::testbed::{debugfs, have, run};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::MetadataExt;

const DAY: i64 = 86_400;

fn now() -> i64 {
    run("date", &["+%s"]).trim().parse().unwrap()
}

/// When something was last accessed, as any program sees it.
fn accessed(bed: &Bed, name: &str) -> (i64, i64) {
    let found = fs::symlink_metadata(bed.path(name)).unwrap();
    (found.atime(), found.atime_nsec())
}

/// A volume with files of all ages: (name, time of access, time of change).
fn volume(ages: &[(&str, i64, i64)]) -> Bed {
    let source = tempfile::tempdir().unwrap();
    for (name, ..) in ages {
        match *name {
            "dir" => fs::create_dir(source.path().join(name)).unwrap(),
            "link" => std::os::unix::fs::symlink("target", source.path().join(name)).unwrap(),
            _ => fs::write(source.path().join(name), name).unwrap(),
        }
    }
    let bed = Bed::unmounted("16M", &["-d", source.path().to_str().unwrap()]);
    let set = |&(name, accessed, changed): &(&str, i64, i64)| {
        [("atime", accessed), ("mtime", changed), ("ctime", changed)]
            .map(|(field, time)| format!("sif /{name} {field} @{time}"))
    };
    debugfs(&bed.image, &ages.iter().flat_map(set).collect::<Vec<_>>());
    bed
}

#[test]
fn reading_changes_times_of_access_by_linux_rule() {
    if !can_mount() || !have("chattr") {
        return;
    }
    let now = now();
    let (young, old, older) = (now - 3600, now - 2 * DAY, now - 3 * DAY);
    let ages = [
        ("changed", young, young),
        ("young", young, older),
        ("old", old, older),
        ("dir", old, older),
        ("link", old, older),
        ("untold", old, older),
        ("copied", old, older),
    ];
    let mut bed = volume(&ages);
    let read_all = |bed: &Bed| {
        for name in ["changed", "young", "old"] {
            assert_eq!(fs::read_to_string(bed.path(name)).unwrap(), name);
        }
        assert_eq!(fs::read_dir(bed.path("dir")).unwrap().count(), 0);
        assert_eq!(fs::read_link(bed.path("link")).unwrap().to_str(), Some("target"));
        let flags = OFlags::RDONLY | OFlags::NOATIME;
        let file = rustix::fs::open(bed.path("untold"), flags, Mode::empty()).unwrap();
        assert_eq!(rustix::io::read(&file, &mut [0; 99]), Ok(6));
    };
    bed.mount("");
    read_all(&bed);
    for (name, time, _) in ages {
        assert_eq!(accessed(&bed, name).0, time, "{name} without relatime");
    }
    bed.umount();
    bed.mount("relatime,commit=900");
    read_all(&bed);
    let (from, to) = (fs::File::open(bed.path("copied")).unwrap(), fs::File::create(bed.path("to")).unwrap());
    assert_eq!(accessed(&bed, "copied").0, old, "opening is not reading");
    assert_eq!(rustix::fs::copy_file_range(&from, None, &to, None, 6), Ok(6));
    let times: Vec<_> = ages.iter().map(|(name, ..)| accessed(&bed, name)).collect();
    for ((name, time, _), found) in ages.iter().zip(&times) {
        match *name {
            "young" | "untold" => assert_eq!(found.0, *time, "{name}"),
            _ => assert!(found.0 >= now, "{name}: {found:?}"),
        }
    }
    // Once is enough, even past the kernel's cache; a file that is never to be noted is not.
    bed.shell("dd if=old iflag=direct of=/dev/null 2>&1; cat changed >/dev/null; ls dir");
    read_all(&bed);
    bed.shell("echo more > quiet; chattr +A quiet; touch -ad '5 days ago' quiet");
    let quiet = accessed(&bed, "quiet");
    assert_eq!(fs::read_to_string(bed.path("quiet")).unwrap(), "more\n");
    assert_eq!(accessed(&bed, "quiet"), quiet);
    assert!(ages.iter().map(|(name, ..)| accessed(&bed, name)).eq(times.iter().copied()));
    // What was written and closed is read from the server once, also through the cache.
    bed.shell("cat to; touch -ad '5 days ago' to; echo new >> to");
    assert_eq!(fs::read_to_string(bed.path("to")).unwrap(), "copiednew\n");
    assert!(accessed(&bed, "to").0 >= now);
    drop((from, to));
    bed.umount();
    bed.mount("ro");
    assert!(ages.iter().map(|(name, ..)| accessed(&bed, name)).eq(times), "they are on the volume");
    bed.umount();
}

/// A read is no reason to write the journal at once.
#[test]
fn times_of_access_wait_for_the_next_commit() {
    if !can_mount() {
        return;
    }
    let names: Vec<String> = (0..50).map(|n| format!("file{n}")).collect();
    let now = now();
    let ages: Vec<_> = names.iter().map(|name| (&**name, now - 3 * DAY, now - 3 * DAY)).collect();
    let mut bed = volume(&ages);
    bed.mount("relatime,commit=900");
    let commits = |bed: &Bed| {
        let mut text = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&bed.at, "system.extant.metrics", &mut text).unwrap();
        let text = String::from_utf8(text[..len].to_vec()).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix("extant_journal_commits_total "));
        found.unwrap().parse::<u64>().unwrap()
    };
    let before = commits(&bed);
    for name in &names {
        fs::read(bed.path(name)).unwrap();
        assert!(accessed(&bed, name).0 >= now);
    }
    assert_eq!(commits(&bed), before);
    bed.umount();
}
