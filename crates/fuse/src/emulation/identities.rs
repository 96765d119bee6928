//! Whom the server takes the processes of an emulation for.

use super::agreed::NewOwner;
use super::mark;
use extant_format::UintExt;
use parking_lot::RwLock;
use std::sync::Arc;

/// Maximum number of credentials, and of supplementary groups in all of them. Programs cannot make
/// the server hold more: about 8 MiB.
const MOST: usize = 1 << 16;
const MOST_GROUPS: usize = 1 << 20;

/// A user who acts on files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) supplementary: Vec<u32>,
}

/// All credentials that the supervisor has told of, by number. Number 0 is root.
#[derive(Debug)]
pub(crate) struct Identities {
    /// The supervisor's process.
    supervisor: u32,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// From number 1 on.
    all: Vec<Arc<Identity>>,
    groups: usize,
}

impl Identities {
    pub(crate) fn new(supervisor: u32) -> Self {
        Self { supervisor, known: RwLock::default() }
    }

    /// Whether this thread is the supervisor, and not a program that imitates it.
    pub(crate) const fn is_supervisor(&self, thread: u32) -> bool {
        self.supervisor == thread
    }

    /// Whom a thread acts as, unless as root. It must not end meanwhile, as one whose request is
    /// being answered does not.
    pub(crate) fn of(&self, thread: u32) -> Option<Arc<Identity>> {
        let known = self.known.read();
        if known.all.is_empty() {
            return None;
        }
        known.get(mark::read(thread).number)
    }

    /// Who makes a change of owner, unless root.
    pub(crate) fn author(&self, change: &NewOwner) -> Option<Arc<Identity>> {
        self.known.read().get(change.number)
    }

    /// Takes credentials from an ioctl's argument. Returns false if there are too many, or if the
    /// number is not the next one.
    pub(crate) fn register(&self, argument: &[u8]) -> bool {
        let (words, rest) = argument.as_chunks();
        let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let ([number, user, group, supplementary @ ..], []) = (&*words, rest) else { return false };
        let mut known = self.known.write();
        let groups = known.groups + supplementary.len();
        if number.to_usize() != known.all.len() + 1 || known.all.len() >= MOST || groups > MOST_GROUPS {
            return false;
        }
        known.groups = groups;
        known.all.push(Arc::new(Identity {
            user: *user,
            group: *group,
            supplementary: supplementary.to_vec(),
        }));
        true
    }
}

impl Known {
    fn get(&self, number: u32) -> Option<Arc<Identity>> {
        self.all.get(number.to_usize().checked_sub(1)?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn credentials_come_in_order_and_are_not_without_end() {
        let identities = Identities::new(5);
        assert!(identities.is_supervisor(5) && !identities.is_supervisor(6));
        assert_eq!(identities.of(std::process::id()), None);
        assert!(identities.register(&argument(&[1, 10, 20])));
        assert!(identities.register(&argument(&[2, 11, 21, 30, 31])));
        // A number again, too few words, a word that is cut off.
        for odd in [argument(&[2, 11, 21]), argument(&[3, 1]), argument(&[3, 1, 2, 3])[..15].to_vec()] {
            assert!(!identities.register(&odd));
        }
        let by = |number| identities.author(&NewOwner { number, uid: 0, gid: 0 });
        let second = Identity { user: 11, group: 21, supplementary: vec![30, 31] };
        assert_eq!(by(2).as_deref(), Some(&second));
        assert_eq!((by(0), by(3)), (None, None));
        // This process has no mark.
        assert_eq!(identities.of(std::process::id()), None);
        assert!(!identities.register(&argument(&vec![3; MOST_GROUPS + 3])));
        assert!((3..).take_while(|n| identities.register(&argument(&[*n, 1, 1]))).count() == MOST - 2);
    }
}
