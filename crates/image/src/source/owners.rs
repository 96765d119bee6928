//! Names of users and groups, with their numbers.

use super::acl_text::NameOf;
use std::collections::BTreeMap;

/// Maximum number of names to keep. A hostile archive may contain a new name in each header.
const MOST_NAMES: usize = 1 << 16;

/// Numbers of users and groups by name. The first number seen for a name is kept.
#[derive(Debug, Default)]
pub(crate) struct Owners(BTreeMap<(NameOf, Vec<u8>), u32>);

impl Owners {
    pub(crate) fn note(&mut self, of: NameOf, name: &[u8], number: u32) {
        if !name.is_empty() && self.0.len() < MOST_NAMES {
            self.0.entry((of, name.to_vec())).or_insert(number);
        }
    }

    pub(crate) fn get(&self, of: NameOf, name: &str) -> Option<u32> {
        self.0.get(&(of, name.as_bytes().to_vec())).copied()
    }

    /// Adds the lines of a file in the format of passwd(5) or group(5): name, password, number.
    pub(crate) fn read(&mut self, of: NameOf, file: &[u8]) {
        for line in file.split(|&byte| byte == b'\n') {
            let mut fields = line.split(|&byte| byte == b':');
            let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
            if let (Some(name), Some(number)) = (fields.next(), fields.nth(1).and_then(number)) {
                self.note(of, name, number);
            }
        }
    }
}
