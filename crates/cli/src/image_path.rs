//! `IMAGE:/path`; the image may be the address of an NBD export.

use extant_format::{Inode, InodeNumber};
use extant_fs::{Error, Follow, Volume, quote};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path in an image: `IMAGE:/path`, split at the last `:/`; if there is none, the image's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePath {
    pub(crate) image: PathBuf,
    /// Starts with a slash, unless it is the number of an inode: `<12>`.
    pub(crate) path: Vec<u8>,
}

/// A path without `.` and `..` and without a slash at its ends, like a shell's working directory:
/// `..` removes the previous name, even if that is a symbolic link.
pub(crate) fn plain_names(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// The number in `<12>`.
fn number_in(path: &[u8]) -> Option<InodeNumber> {
    let digits = path.strip_prefix(b"<")?.strip_suffix(b">")?;
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok().map(InodeNumber)
}

impl ImagePath {
    pub(crate) fn parse(arg: OsString) -> Self {
        let bytes = arg.into_vec();
        // The colon of an address's scheme does not count.
        let scheme = match extant::is_address(Path::new(OsStr::from_bytes(&bytes))) {
            true => bytes.windows(3).position(|three| three == b"://"),
            false => Some(0),
        };
        // `IMAGE:<12>` is inode 12, as in debugfs.
        if let Some(at) = bytes.windows(2).rposition(|pair| pair == b":<").filter(|&at| at > 0)
            && number_in(&bytes[at + 1..]).is_some()
        {
            return Self {
                image: OsString::from_vec(bytes[..at].to_vec()).into(),
                path: bytes[at + 1..].to_vec(),
            };
        }
        let split = bytes.windows(2).rposition(|pair| pair == b":/").filter(|&at| Some(at) > scheme);
        let (image, path) = match split {
            Some(at) => (bytes[..at].to_vec(), bytes[at + 1..].to_vec()),
            None => (bytes, b"/".to_vec()),
        };
        Self { image: OsString::from_vec(image).into(), path }
    }

    /// The inode at this place.
    ///
    /// # Errors
    /// There is no such inode, or the path to it is damaged.
    pub(crate) async fn resolve(&self, volume: &Volume, follow: Follow) -> Result<Inode, Error> {
        match number_in(&self.path) {
            Some(number) => volume.inode(number).await,
            None => volume.resolve(&self.path, follow).await,
        }
    }

    /// The whole place in printable form.
    pub(crate) fn quoted(&self) -> String {
        format!("{}:{}", self.image_quoted(), quote(&self.path))
    }

    pub(crate) fn image_quoted(&self) -> String {
        quote(self.image.as_os_str().as_bytes())
    }

    /// The place that was probably meant if there is no such image: `IMAGE:path` lacks a slash, and
    /// `IMAGE/path` a colon.
    pub(crate) fn misspelt(&self, error: &std::io::Error) -> Option<String> {
        let bytes = self.image.as_os_str().as_bytes();
        // IMAGE/path, as if IMAGE were a directory.
        if error.kind() == std::io::ErrorKind::NotADirectory {
            let file = |at: &usize| Path::new(OsStr::from_bytes(&bytes[..*at])).is_file();
            let at = (1..bytes.len()).filter(|at| bytes[*at] == b'/').find(file)?;
            return Some(format!("{}:{}", quote(&bytes[..at]), quote(&bytes[at..])));
        }
        if error.kind() != std::io::ErrorKind::NotFound {
            return None;
        }
        let (image, path) = self.split_at_colon().filter(|(_, path)| !path.starts_with(b"/"))?;
        Some(format!("{}:/{}", quote(image), quote(path)))
    }

    /// The image, quoted, if a command that takes no more than that got a path in it.
    pub(crate) fn image_alone(&self) -> Option<String> {
        self.split_at_colon().filter(|(_, path)| path.starts_with(b"/")).map(|(image, _)| quote(image))
    }

    /// Splits the argument at its last colon that follows the name of an existing file.
    fn split_at_colon(&self) -> Option<(&[u8], &[u8])> {
        let bytes = self.image.as_os_str().as_bytes();
        let colons = bytes.iter().enumerate().filter(|(_, b)| **b == b':').map(|(at, _)| at);
        let image = |at: usize| Path::new(OsStr::from_bytes(&bytes[..at]));
        let at = colons.into_iter().rev().find(|&at| at > 0 && image(at).exists() && !image(at).is_dir())?;
        Some((&bytes[..at], &bytes[at + 1..]))
    }

    /// The whole argument, quoted, if it names a file and no volume has the image's name.
    pub(crate) fn whole_file(&self) -> Option<String> {
        let whole = [self.image.as_os_str().as_bytes(), b":", &self.path].concat();
        let may_be_volume = |file: std::fs::Metadata| !(file.is_dir() || file.is_file() && file.len() < 2048);
        let is_image = self.image.metadata().is_ok_and(may_be_volume);
        let is_one = !is_image && Path::new(OsStr::from_bytes(&whole)).is_file();
        is_one.then(|| quote(&whole))
    }

    /// The path from the image's root, with a leading slash, of `relative` below this place.
    pub(crate) fn below(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.path.clone();
        while path.last() == Some(&b'/') {
            path.pop();
        }
        if !relative.is_empty() || path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(relative);
        path
    }

    /// The last component, unless the place is the root.
    pub(crate) fn file_name(&self) -> Option<&OsStr> {
        let name = self.path.split(|&b| b == b'/').rfind(|name| !name.is_empty())?;
        Some(OsStr::from_bytes(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(arg: &str) -> (String, String) {
        let place = ImagePath::parse(arg.into());
        (place.image.display().to_string(), String::from_utf8(place.path).unwrap())
    }

    #[test]
    fn names_in_an_archive_begin_below_its_top() {
        for (path, name) in [("/", ""), ("/etc/", "etc"), ("/../a/./b//c/..", "a/b"), ("<12>", "<12>")] {
            assert_eq!(plain_names(path.as_bytes()), name.as_bytes());
        }
    }

    #[test]
    fn image_and_path_part_at_the_last_colon_and_slash() {
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(split("a.img:/etc/fstab"), pair("a.img", "/etc/fstab"));
        assert_eq!(split("a.img"), pair("a.img", "/"));
        assert_eq!(split("a.img:/"), pair("a.img", "/"));
        assert_eq!(split("disk:1.img"), pair("disk:1.img", "/"));
        assert_eq!(split("/dev/disk/by-path/pci:0:/x"), pair("/dev/disk/by-path/pci:0", "/x"));
        assert_eq!(split("odd:/name.img:/"), pair("odd:/name.img", "/"));
        assert_eq!(split(":/x"), pair(":/x", "/"));
        assert_eq!(split("a.img:<12>"), pair("a.img", "<12>"));
        assert_eq!(split("a.img:<x>"), pair("a.img:<x>", "/"));
        assert_eq!(split("a.img:/<12>"), pair("a.img", "/<12>"));
        assert_eq!(split("nbd://host"), pair("nbd://host", "/"));
        assert_eq!(split("nbd://host:10809/a:/etc/fstab"), pair("nbd://host:10809/a", "/etc/fstab"));
        let unix = "nbd+unix:///a?socket=/run/s";
        assert_eq!(split(&format!("{unix}:/x")), pair(unix, "/x"));
        assert_eq!(split(unix), pair(unix, "/"));
    }

    #[test]
    fn paths_below_a_place_have_one_slash_between() {
        assert_eq!(ImagePath::parse("i:/".into()).below(b"a/b"), b"/a/b");
        assert_eq!(ImagePath::parse("i:/d/".into()).below(b"a"), b"/d/a");
        assert_eq!(ImagePath::parse("i:/d".into()).below(b""), b"/d");
        assert_eq!(ImagePath::parse("i".into()).below(b""), b"/");
    }
}
