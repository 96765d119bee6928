//! Permissions as accepted by chmod: in octal, or as changes such as `u+x,go-w` (POSIX, chmod).

use extant::Metadata;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// Permissions to set, or changes to a file's permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModeChange {
    /// All twelve bits.
    To(u32),
    /// Changes, one after the other.
    By(Vec<Clause>),
}

/// Changes for one group of users, as in `go=u-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clause {
    /// Bits that the clause may change: permissions of its classes, with set-ID for users and
    /// groups, and the sticky bit for others.
    who: u32,
    actions: Vec<(Operator, Permissions)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permissions {
    /// Bits for all classes. `conditional`: adds execution for directories, and for files that
    /// anyone may execute.
    Bits { bits: u32, conditional: bool },
    /// The bits of a class, given by its shift.
    Of(u32),
}

impl ModeChange {
    /// Parses chmod's first argument.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return match u32::from_str_radix(text, 8) {
                Ok(mode) if mode <= 0o7777 => Ok(Self::To(mode)),
                _ => Err("permissions in octal are from 0 to 7777".into()),
            };
        }
        let clauses = text.split(',').map(Clause::parse).collect::<Option<Vec<_>>>();
        clauses.map(Self::By).ok_or_else(|| "permissions are written as in 644, u+x,go-w or a=rX".into())
    }

    /// The permissions, if they do not depend on the file's current ones.
    pub(crate) fn absolute(&self) -> Option<u32> {
        match self {
            Self::To(mode) => Some(*mode),
            Self::By(_) => None,
        }
    }

    /// The permissions that a file gets.
    pub(crate) fn apply(&self, file: &Metadata) -> u32 {
        self.applied_to(file.mode() & 0o7777, file.is_dir())
    }

    fn applied_to(&self, mode: u32, is_dir: bool) -> u32 {
        match self {
            Self::To(mode) => *mode,
            Self::By(clauses) => clauses.iter().fold(mode, |mode, clause| clause.apply(mode, is_dir)),
        }
    }
}

impl Clause {
    fn parse(text: &str) -> Option<Self> {
        let begin = text.find(['+', '-', '='])?;
        let mut who = 0;
        for class in text[..begin].chars() {
            who |= match class {
                'u' => 0o700 | SET_UID,
                'g' => 0o070 | SET_GID,
                'o' => 0o007 | STICKY,
                'a' => 0o7777,
                _ => return None,
            };
        }
        // There is no umask inside an image, so naming no class means all.
        let who = if begin == 0 { 0o7777 } else { who };
        let mut rest = &text[begin..];
        let mut actions = Vec::new();
        while let Some(operator) = rest.chars().next() {
            let operator = match operator {
                '+' => Operator::Add,
                '-' => Operator::Remove,
                '=' => Operator::Set,
                _ => return None,
            };
            rest = &rest[1..];
            let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
            actions.push((operator, Permissions::parse(&rest[..end])?));
            rest = &rest[end..];
        }
        Some(Self { who, actions })
    }

    fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        self.actions.iter().fold(mode, |mode, (operator, permissions)| {
            let bits = permissions.bits(mode, is_dir) & self.who;
            match operator {
                Operator::Add => mode | bits,
                Operator::Remove => mode & !bits,
                // Like chmod, keep a directory's set-ID bits that are not named.
                Operator::Set => {
                    let kept = if is_dir { SET_UID | SET_GID } else { 0 };
                    mode & (!self.who | kept) | bits
                }
            }
        })
    }
}

impl Permissions {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "u" => return Some(Self::Of(6)),
            "g" => return Some(Self::Of(3)),
            "o" => return Some(Self::Of(0)),
            _ => {}
        }
        let (mut bits, mut conditional) = (0, false);
        for permission in text.chars() {
            match permission {
                'r' => bits |= 0o444,
                'w' => bits |= 0o222,
                'x' => bits |= 0o111,
                'X' => conditional = true,
                's' => bits |= SET_UID | SET_GID,
                't' => bits |= STICKY,
                _ => return None,
            }
        }
        Some(Self::Bits { bits, conditional })
    }

    fn bits(self, mode: u32, is_dir: bool) -> u32 {
        match self {
            Self::Bits { bits, conditional } if conditional && (is_dir || mode & 0o111 != 0) => bits | 0o111,
            Self::Bits { bits, .. } => bits,
            Self::Of(shift) => (mode >> shift & 7) * 0o111,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn changes_do_what_chmod_does() {
        let dir = tempfile::tempdir().unwrap();
        let (file, folder) = (dir.path().join("file"), dir.path().join("folder"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&folder).unwrap();
        for change in [
            "u+x,go-w", "a=rX", "a=r,a+X", "ug=rw", "o=", "u=g", "go=u-w", "g+s", "u+s,a+t", "u-s", "g=u+x",
            "a-t", "o+X", "u=rwxs", "a+rwx", "ug-x+w",
        ] {
            for mode in [0o644, 0o755, 0o600, 0o4711, 0o2750, 0o1777, 0o000] {
                for (path, is_dir) in [(&file, false), (&folder, true)] {
                    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
                    let ran = std::process::Command::new("chmod").arg("--").arg(change).arg(path).status();
                    assert!(ran.unwrap().success(), "{change}");
                    let expected = path.metadata().unwrap().permissions().mode() & 0o7777;
                    let got = ModeChange::parse(change).unwrap().applied_to(mode, is_dir);
                    assert_eq!(
                        got, expected,
                        "{change} of {mode:o}: {got:o}, chmod {expected:o}, directory {is_dir}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_permission_is_refused() {
        for wrong in ["", "8", "77777", "u", "q+x", "u+y", "u+x,", "rwx", "u+gx", "-1"] {
            assert!(ModeChange::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ModeChange::parse("4755"), Ok(ModeChange::To(0o4755)));
    }
}
