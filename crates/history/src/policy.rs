//! Policies that are chosen by name.

use std::fmt;
use std::str::FromStr;

/// The name of our policies.
pub const OURS: &str = "extant";

/// A policy that can be chosen by name; `make` creates it.
#[derive(Debug)]
pub struct Named<F> {
    /// The name in experiments and command lines.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    pub(crate) make: F,
}

/// A kind of policy.
pub trait Kind: Sized + 'static {
    /// The kind, with its article.
    const NAME: &'static str;

    /// Its policies.
    const TABLE: &'static [Named<Self>];

    /// Policies that can also be chosen, but are not listed.
    const UNLISTED: &'static [Named<Self>] = &[];
}

/// No policy of this kind has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is not {kind}; there are {known}")]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
    /// The kind of policy looked up.
    pub kind: &'static str,
    /// The existing names.
    pub known: String,
}

/// A policy that exists. It is printed as its name.
pub struct Choice<F: 'static>(&'static Named<F>);

impl<F: Copy> Choice<F> {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The function that creates it.
    pub fn make(self) -> F {
        self.0.make
    }
}

impl<F: Kind + Copy> Choice<F> {
    /// The policy with this name; `None` for the name of Extant's own policy, which is in no table.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn of_linux(name: &str) -> Result<Option<Self>, UnknownPolicy> {
        if name == OURS { Ok(None) } else { name.parse().map(Some) }
    }
}

impl<F: Kind> FromStr for Choice<F> {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let mut all = F::TABLE.iter().chain(F::UNLISTED);
        all.find(|policy| policy.name == name).map(Self).ok_or_else(|| {
            let known = F::TABLE.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            UnknownPolicy { name: name.to_owned(), kind: F::NAME, known }
        })
    }
}

impl<F> Clone for Choice<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Choice<F> {}

impl<F> PartialEq for Choice<F> {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl<F> Eq for Choice<F> {}

impl<F> fmt::Debug for Choice<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.name.fmt(f)
    }
}

impl<F> fmt::Display for Choice<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}
