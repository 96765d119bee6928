//! Finds the user of a block device of the host, for messages. Compares device numbers, because a
//! disk has many names, and a container may show none of them.

use super::loops::DeviceNumber;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::fs;
use std::io::{Error, ErrorKind};

/// The error for a device that could not be opened; if the device is in use, it names the user.
pub(super) fn error_of(errno: Errno, device: DeviceNumber) -> Error {
    if errno != Errno::BUSY {
        return errno.into();
    }
    let (major, minor) = device;
    let told = match user_of(device) {
        Some(user) => format!("in use: {user}"),
        None => format!("in use: the kernel has claimed device {major}:{minor} or a part of it"),
    };
    Error::new(ErrorKind::ResourceBusy, told)
}

/// What uses a device or one of its partitions.
fn user_of(device: DeviceNumber) -> Option<String> {
    let numbers = with_partitions(device);
    let read = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    if let Some(((major, minor), at)) = mounted(&read("/proc/self/mountinfo"), &numbers) {
        return Some(format!("device {major}:{minor} is mounted on {at}; unmount it first"));
    }
    let swaps = read("/proc/swaps");
    let paths = swaps.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    let areas = paths.filter_map(|path| rustix::fs::stat(path).ok());
    let mut areas = areas.filter(|stat| FileType::from_raw_mode(stat.st_mode).is_block_device());
    if let Some((major, minor)) =
        areas.find_map(|stat| numbers.iter().find(|number| **number == super::loops::number(stat.st_rdev)))
    {
        return Some(format!("device {major}:{minor} is a swap area; swapoff frees it"));
    }
    numbers.iter().find_map(|&(major, minor)| {
        let holders = fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders")).ok()?;
        let holder = holders.flatten().next()?.file_name();
        let holder = holder.to_string_lossy();
        Some(format!("device {major}:{minor} is a part of /dev/{}", holder.escape_debug()))
    })
}

/// The numbers of a device and of its partitions.
fn with_partitions(device: DeviceNumber) -> Vec<DeviceNumber> {
    let mut numbers = vec![device];
    let below = fs::read_dir(format!("/sys/dev/block/{}:{}", device.0, device.1));
    for entry in below.into_iter().flatten().flatten() {
        let is_partition = entry.path().join("partition").exists();
        let number = fs::read_to_string(entry.path().join("dev")).ok().filter(|_| is_partition);
        numbers.extend(number.and_then(|number| parse(number.trim())));
    }
    numbers
}

/// `8:1`.
fn parse(number: &str) -> Option<DeviceNumber> {
    let (major, minor) = number.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The first mount of one of these devices, and where it is, in a list formatted like
/// `/proc/self/mountinfo` (proc(5)): number, parent, device, root and mount point.
fn mounted<'a>(mounts: &'a str, numbers: &[DeviceNumber]) -> Option<(DeviceNumber, &'a str)> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = parse(fields.next()?)?;
        numbers.contains(&device).then(|| fields.nth(1)).flatten().map(|at| (device, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number() {
        let mounts =
            "22 1 0:20 / / rw - overlay overlay rw\n35 22 8:3 / /a\\040b rw shared:1 - ext4 /dev/x rw\nodd";
        assert_eq!(mounted(mounts, &[(8, 1), (8, 3)]), Some(((8, 3), "/a\\040b")));
        assert_eq!(mounted(mounts, &[(8, 1)]), None);
    }

    #[test]
    fn only_devices_in_use_are_named() {
        assert_eq!(error_of(Errno::NOENT, (0, 0)).raw_os_error(), Some(2));
        let busy = error_of(Errno::BUSY, (4000, 1));
        assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
        assert!(busy.to_string().contains("4000:1"), "{busy}");
    }
}
