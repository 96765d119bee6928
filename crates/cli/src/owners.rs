//! Owners by number, or by their names in the image's own `/etc/passwd` and `/etc/group`.

use crate::failure::Failure;
use extant::Dir;
use extant_fs::quote;
use std::path::Path;

/// An owner, a group, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// An owner, a group, or both, as they were typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedOwner {
    user: Option<Id>,
    group: Option<Id>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Id {
    Number(u32),
    Name(String),
}

impl NamedOwner {
    /// Parses `OWNER`, `OWNER:GROUP` or `:GROUP`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let owner = Self { user: Id::parse(user)?, group: Id::parse(group)? };
        match owner.user.is_none() && owner.group.is_none() || text.ends_with(':') {
            true => Err("an owner is OWNER, OWNER:GROUP or :GROUP, in numbers or names".into()),
            false => Ok(owner),
        }
    }

    /// Whether a name has to be looked up on the volume.
    pub(crate) fn has_name(&self) -> bool {
        [&self.user, &self.group].into_iter().any(|id| matches!(id, Some(Id::Name(_))))
    }

    /// The numbers; names are looked up on the volume.
    pub(crate) fn resolve(&self, root: &Dir, image: &Path) -> Result<Owner, Failure> {
        let number = |id: &Option<Id>, file: &str| match id {
            None => Ok(None),
            Some(Id::Number(number)) => Ok(Some(*number)),
            Some(Id::Name(name)) => look_up(root, image, file, name).map(Some),
        };
        Ok(Owner { uid: number(&self.user, "/etc/passwd")?, gid: number(&self.group, "/etc/group")? })
    }
}

impl Id {
    fn parse(text: &str) -> Result<Option<Self>, String> {
        match text.parse() {
            _ if text.is_empty() => Ok(None),
            // This number means "unchanged" in Linux's system calls.
            Ok(u32::MAX) => Err(format!("{text} is no id that a file can have")),
            Ok(number) => Ok(Some(Self::Number(number))),
            Err(_) if text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) => {
                Err(format!("{text} is no number and no name"))
            }
            Err(_) => Ok(Some(Self::Name(text.to_owned()))),
        }
    }
}

/// Maximum size of a list of users or groups to read: some 100,000 entries.
const LIST_BYTES_MAX: u64 = 8 << 20;

/// The third field of the line with this name: passwd(5), group(5).
fn look_up(root: &Dir, image: &Path, file: &str, name: &str) -> Result<u32, Failure> {
    let image = quote(image.as_os_str().as_encoded_bytes());
    let unknown =
        |why: String| Failure::Usage(format!("{}: {why}; give its number instead", quote(name.as_bytes())));
    let failed = |error: extant::Error| unknown(format!("{image}:{file} cannot be read ({error})"));
    let found = root.open(file).map_err(failed)?;
    if found.len() > LIST_BYTES_MAX {
        return Err(unknown(format!("{image}:{file} has more than {LIST_BYTES_MAX} bytes")));
    }
    let mut text = vec![0; usize::try_from(found.len()).unwrap_or(0)];
    found.read_exact_at(0, &mut text).map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    let number = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    });
    // In chown(2), u32::MAX means "leave unchanged".
    number.filter(|&number| number != u32::MAX).ok_or_else(|| {
        let hint = match name.split_once('.') {
            Some((user, group)) => format!("; a group follows a colon: {user}:{group}"),
            None => String::new(),
        };
        unknown(format!("{image}:{file} has no such name{hint}"))
    })
}

#[cfg(test)]
mod tests {
    use super::NamedOwner;

    #[test]
    fn owners_are_numbers_or_names() {
        for text in ["1:2", ":2", "1", "root", "root:adm", ":adm", "0:adm", "4294967294"] {
            assert!(NamedOwner::parse(text).is_ok(), "{text}");
        }
        for text in ["", ":", "1:", "root:", "-1", "1x", "4294967295"] {
            assert!(NamedOwner::parse(text).is_err(), "{text}");
        }
    }
}
