//! Names to leave out.

use crate::tree::{Hidden, Kind, NodeId, Tree};
use glob::{MatchOptions, Pattern, PatternError};
use std::str::FromStr;

const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A pattern of names, as in a shell: `*` and `?` do not match slashes, and `**` stands for any
/// number of directories.
///
/// A pattern without a slash matches names anywhere. One with a slash matches paths from the top
/// of the source.
#[derive(Clone, Debug)]
pub struct NamePattern {
    pattern: Pattern,
    is_path: bool,
}

impl FromStr for NamePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let text = text.strip_suffix('/').unwrap_or(text);
        let text = text.strip_prefix('.').filter(|rest| rest.starts_with('/')).unwrap_or(text);
        let is_path = text.contains('/');
        let pattern = Pattern::new(text.strip_prefix('/').unwrap_or(text))?;
        Ok(Self { pattern, is_path })
    }
}

impl NamePattern {
    fn matches(&self, path: &[u8]) -> bool {
        let part = match self.is_path {
            true => path,
            false => path.rsplit(|&byte| byte == b'/').next().unwrap_or_default(),
        };
        self.pattern.matches_with(&String::from_utf8_lossy(part), OPTIONS)
    }
}

/// Which names to leave out: those that match a pattern in `exclude`, and none in `include`. If a
/// directory is left out, so is everything below it.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Patterns of names to leave out.
    pub exclude: Vec<NamePattern>,
    /// Patterns of names to keep, even if they match `exclude`.
    pub include: Vec<NamePattern>,
}

impl Selection {
    /// Whether the name at this path is left out. The path begins at the top, without a slash.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        let any = |patterns: &[NamePattern]| patterns.iter().any(|pattern| pattern.matches(path));
        any(&self.exclude) && !any(&self.include)
    }

    /// Whether the name at this path, or a directory above it, is left out.
    pub(crate) fn leaves_out_above(&self, path: &[u8]) -> bool {
        let ends = (0..path.len()).filter(|&at| path[at] == b'/').chain([path.len()]);
        !self.exclude.is_empty() && ends.into_iter().any(|end| self.leaves_out(&path[..end]))
    }

    /// Removes the names that are left out from the tree.
    pub(crate) fn prune(&self, tree: &mut Tree) {
        if self.exclude.is_empty() {
            return;
        }
        // Names that are left out are not hidden in trees below this one, either.
        let path_of = |hidden: &Hidden| {
            let steps = hidden.dir.iter().map(|step| &step.name[..]);
            steps.chain(hidden.name.as_deref()).collect::<Vec<_>>().join(&b'/')
        };
        let is_kept = |hidden: &&Hidden| !self.leaves_out_above(&path_of(hidden));
        let hidden = tree.hidden().iter().filter(is_kept).cloned().collect();
        tree.set_hidden(hidden);
        let mut todo = vec![(NodeId::ROOT, Vec::new())];
        while let Some((dir, above)) = todo.pop() {
            for entry in tree.sorted_children(dir) {
                let name = tree.entry_name(entry).to_vec();
                let path = [&above[..], &name].concat();
                let node = tree.entry_node(entry);
                if self.leaves_out(&path) {
                    tree.remove(dir, &name);
                } else if tree.node(node).kind == Kind::Directory {
                    todo.push((node, [&path[..], b"/"].concat()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves_out(exclude: &[&str], include: &[&str], path: &str) -> bool {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Selection { exclude: patterns(exclude), include: patterns(include) }.leaves_out(path.as_bytes())
    }

    #[test]
    fn a_pattern_with_a_slash_is_a_path_and_one_without_is_a_name() {
        assert!(leaves_out(&["*.o"], &[], "src/deep/x.o"));
        assert!(leaves_out(&[".git/"], &[], "a/.git"));
        assert!(leaves_out(&["./proc"], &[], "proc") && leaves_out(&[".x"], &[], "a/.x"));
        assert!(leaves_out(&["/proc"], &[], "proc") && !leaves_out(&["/proc"], &[], "usr/proc"));
        assert!(leaves_out(&["var/cache/*"], &[], "var/cache/x"));
        assert!(!leaves_out(&["var/cache/*"], &[], "var/cache"));
        assert!(!leaves_out(&["var/*"], &[], "var/cache/x"), "`*` stops at slashes");
        assert!(leaves_out(&["usr/**/*.a"], &[], "usr/lib/deep/x.a"));
        assert!(!leaves_out(&["*.o"], &["keep.o"], "a/keep.o"));
        assert!(leaves_out(&["*"], &["etc"], "usr") && !leaves_out(&["*"], &["etc"], "etc"));
        assert!("a**b".parse::<NamePattern>().is_err());
    }
}
