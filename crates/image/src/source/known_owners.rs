//! Whose names of users and groups count.

use super::acl_text::NameOf;
use super::etc_files::file_in_etc;
use super::owners::Owners;
use super::{Below, Stores};
use crate::tree::Tree;
use crate::{BuildError, Note};
use extant_fs::quote;
use std::collections::BTreeSet;

/// Numbers by name: first those of the sources, or else of the volume that they are added to, then
/// those of this host.
#[derive(Default)]
pub(crate) struct KnownOwners {
    sources: Owners,
    /// The lists that are the volume's.
    of_volume: Vec<NameOf>,
    host: Owners,
    /// Names found only on the host, with their numbers, as text.
    of_host: BTreeSet<String>,
}

impl KnownOwners {
    pub(crate) fn of(tree: &Tree, stores: &Stores, below: Option<&Below<'_>>) -> Result<Self, BuildError> {
        let mut known = Self::default();
        for (of, name) in [(NameOf::User, "passwd"), (NameOf::Group, "group")] {
            let file = match (file_in_etc(tree, stores, name.as_bytes())?, below) {
                (None, Some(below)) => {
                    known.of_volume.push(of);
                    below.file_in_etc(name)?
                }
                (found, _) => found,
            };
            known.sources.read(of, &file.unwrap_or_default());
            // A host without this file has no names.
            known.host.read(of, &std::fs::read(format!("/etc/{name}")).unwrap_or_default());
        }
        Ok(known)
    }

    /// Looks up a name. If it is not found, the error says where it was looked for.
    pub(crate) fn number_of(&mut self, of: NameOf, name: &[u8]) -> Result<u32, String> {
        let text = String::from_utf8_lossy(name);
        if let Some(number) = self.sources.get(of, &text) {
            return Ok(number);
        }
        let (who, file) = match of {
            NameOf::User => ("user", "passwd"),
            NameOf::Group => ("group", "group"),
        };
        let quoted = quote(name);
        match self.host.get(of, &text) {
            Some(number) => {
                self.of_host.insert(format!("{who} {quoted} = {number}"));
                Ok(number)
            }
            None => {
                let whose = if self.of_volume.contains(&of) { "volume" } else { "sources" };
                Err(format!(
                    "neither /etc/{file} of the {whose} nor that of this host knows the {who} {quoted}"
                ))
            }
        }
    }

    /// A note about the names that only the host knew.
    pub(crate) fn note(self) -> Option<Note> {
        let names: Vec<_> = self.of_host.into_iter().collect();
        (!names.is_empty()).then_some(Note::NamesOfHost { names })
    }
}
