//! SELinux labels by path, according to a policy's `file_contexts` (file_contexts(5)).

use crate::BuildError;
use crate::tree::{Kind, NodeId, Tree, Xattr, XattrSetId};
use regex::bytes::{Regex, RegexBuilder};
use std::collections::BTreeMap;
use std::sync::OnceLock;

const NAME: &[u8] = b"security.selinux";

/// The `file_contexts` of an SELinux policy, which gives files labels by path.
///
/// As in libselinux, the last of several matching lines counts, but lines without special
/// characters take precedence over all others. A file with several names gets the label for the
/// first one in path order.
#[derive(Clone, Debug)]
pub struct FileContexts {
    /// The file's name in messages.
    file: String,
    specs: Vec<Spec>,
    /// Indexes of specs by the first directory of their pattern, in the order of the file. Specs
    /// that may match anywhere are under an empty name.
    stems: BTreeMap<Vec<u8>, Vec<usize>>,
}

#[derive(Clone, Debug)]
struct Spec {
    line: usize,
    pattern: String,
    /// The compiled pattern. Compiled when first needed, because a policy has thousands.
    regex: OnceLock<Regex>,
    /// Every path that the pattern matches begins with this.
    prefix: Vec<u8>,
    is_exact: bool,
    kind: Option<Kind>,
    /// The label, with a NUL at its end as Linux stores it; `None` for `<<none>>`.
    label: Option<Box<[u8]>>,
}

impl FileContexts {
    /// Parses a policy's file; `file` names it in messages.
    ///
    /// # Errors
    /// Names the first line that is invalid.
    pub fn parse(file: &str, text: &str) -> Result<Self, BuildError> {
        let mut specs = Vec::new();
        let mut stems: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        for (line, words) in (1..).zip(text.lines()) {
            let words: Vec<&str> = words.split_ascii_whitespace().collect();
            let (pattern, kind, label) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [pattern, label] => (pattern, None, label),
                [pattern, kind, label] => match kind_of(kind) {
                    Some(kind) => (pattern, Some(kind), label),
                    None => return Err(failed(file, line, format!("{kind} is no type of file"))),
                },
                _ => {
                    let told = "a line is PATTERN LABEL or PATTERN -TYPE LABEL".to_owned();
                    return Err(failed(file, line, told));
                }
            };
            let (prefix, is_exact) = literal(pattern);
            let label = (label != "<<none>>").then(|| [label.as_bytes(), b"\0"].concat().into());
            stems.entry(stem(&prefix).to_vec()).or_default().push(specs.len());
            let (pattern, regex) = (pattern.to_owned(), OnceLock::new());
            specs.push(Spec { line, pattern, regex, prefix, is_exact, kind, label });
        }
        Ok(Self { file: file.to_owned(), specs, stems })
    }

    /// The index of the spec that applies to a path.
    fn find(&self, path: &[u8], kind: Kind) -> Result<Option<usize>, BuildError> {
        let of = |stem: &[u8]| self.stems.get(stem).map_or(&[][..], Vec::as_slice);
        let stem = stem(path);
        let (near, anywhere) = (of(stem), if stem.is_empty() { &[][..] } else { of(b"") });
        let mut best: Option<usize> = None;
        for specs in [near, anywhere] {
            for &at in specs.iter().rev() {
                let spec = &self.specs[at];
                let rank = |at: usize| (self.specs[at].is_exact, at);
                if best.is_some_and(|best| rank(best) > rank(at))
                    || spec.kind.is_some_and(|wanted| wanted != kind)
                    || !path.starts_with(&spec.prefix)
                {
                    continue;
                }
                if spec.matches(path, &self.file)? {
                    best = Some(at);
                }
            }
        }
        Ok(best)
    }

    /// Labels everything in the tree, whose root is at `prefix` on the volume. A file that no line
    /// matches keeps its label.
    pub(crate) fn apply(&self, tree: &mut Tree, prefix: &[u8]) -> Result<(), BuildError> {
        let top: Vec<&[u8]> = prefix.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
        let top = top.iter().flat_map(|name| [b"/", *name].concat()).collect::<Vec<u8>>();
        let mut sets: BTreeMap<(XattrSetId, usize), XattrSetId> = BTreeMap::new();
        let mut seen = vec![false; tree.node_slots()];
        let mut todo = vec![(NodeId::ROOT, top)];
        while let Some((node, path)) = todo.pop() {
            if std::mem::replace(&mut seen[node.index()], true) {
                continue;
            }
            let kind = tree.node(node).kind;
            let found = self.find(if path.is_empty() { b"/" } else { &path }, kind)?;
            if let Some(at) = found
                && let Some(label) = &self.specs[at].label
            {
                let old = tree.node(node).xattrs;
                let set = match sets.get(&(old, at)) {
                    Some(&set) => set,
                    None => {
                        let mut all = tree.xattrs(old).to_vec();
                        all.push(Xattr { name: NAME.into(), value: label.clone() });
                        let set = tree.intern_xattrs(all);
                        sets.insert((old, at), set);
                        set
                    }
                };
                tree.node_mut(node).xattrs = set;
            }
            // Push in reverse order, so that the first path is visited first.
            for entry in tree.sorted_children(node).into_iter().rev() {
                let path = [&path[..], b"/", tree.entry_name(entry)].concat();
                todo.push((tree.entry_node(entry), path));
            }
        }
        Ok(())
    }
}

impl Spec {
    fn matches(&self, path: &[u8], file: &str) -> Result<bool, BuildError> {
        if self.is_exact {
            return Ok(path == self.prefix);
        }
        let regex = match self.regex.get() {
            Some(regex) => regex,
            None => {
                let whole = format!("^(?:{})$", self.pattern);
                let made = RegexBuilder::new(&whole).unicode(false).dot_matches_new_line(true).build();
                let made = made.map_err(|error| {
                    let told = error.to_string();
                    let told = told.lines().last().unwrap_or_default();
                    failed(file, self.line, format!("{}: {told}", self.pattern))
                })?;
                self.regex.get_or_init(|| made)
            }
        };
        Ok(regex.is_match(path))
    }
}

fn failed(file: &str, line: usize, problem: String) -> BuildError {
    BuildError::Line { file: file.to_owned(), line, problem }
}

fn kind_of(word: &str) -> Option<Kind> {
    Some(match word {
        "--" => Kind::File,
        "-d" => Kind::Directory,
        "-c" => Kind::CharDevice,
        "-b" => Kind::BlockDevice,
        "-s" => Kind::Socket,
        "-p" => Kind::Fifo,
        "-l" => Kind::Symlink,
        _ => return None,
    })
}

/// The first directory of a path with further components; empty for other paths.
fn stem(path: &[u8]) -> &[u8] {
    match path.iter().skip(1).position(|&byte| byte == b'/') {
        Some(at) if path.first() == Some(&b'/') => &path[..=at],
        _ => b"",
    }
}

/// The literal text that every match of a pattern begins with, and whether that is the whole
/// pattern.
fn literal(pattern: &str) -> (Vec<u8>, bool) {
    const SPECIAL: &[u8] = b".^$?*+|[]({})";
    let bytes = pattern.as_bytes();
    let (mut found, mut at, mut depth) = (Vec::new(), 0, 0);
    let is_alternative = bytes.iter().enumerate().any(|(at, byte)| {
        let is_quoted = at > 0 && bytes[at - 1] == b'\\';
        match byte {
            b'(' if !is_quoted => depth += 1,
            b')' if !is_quoted => depth -= 1,
            _ => {}
        }
        *byte == b'|' && depth == 0 && !is_quoted
    });
    if is_alternative {
        return (found, false);
    }
    while let Some(&byte) = bytes.get(at) {
        let (literal, len) = match (byte, bytes.get(at + 1)) {
            (b'\\', Some(next)) if next.is_ascii_punctuation() => (*next, 2),
            (b'\\', _) => return (found, false),
            _ if SPECIAL.contains(&byte) => return (found, false),
            _ => (byte, 1),
        };
        // A character that is optional or may be repeated is not part of the literal beginning.
        if bytes.get(at + len).is_some_and(|next| b"?*+{".contains(next)) {
            return (found, false);
        }
        found.push(literal);
        at += len;
    }
    (found, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
# of a policy
/.*                     system_u:object_r:default_t:s0
/usr/.*                 u:usr
/usr/lib(64)?/.*\\.so    -- u:lib
/usr/lib/x\\.so         u:exact
/usr/(.*/)?bin(/.*)?    u:bin
/usr/bin/none           <<none>>
/etc/a|/etc/b           u:either
/dev                    -d u:dev
";

    fn label(path: &str, kind: Kind) -> Option<String> {
        let contexts = FileContexts::parse("policy", POLICY).unwrap();
        let label = &contexts.specs[contexts.find(path.as_bytes(), kind).unwrap()?].label;
        Some(label.as_ref().map_or("none".into(), |label| String::from_utf8_lossy(label).into_owned()))
    }

    #[test]
    fn the_last_line_that_matches_counts_and_exact_ones_before() {
        let file = |path| label(path, Kind::File).unwrap();
        assert_eq!(file("/"), "system_u:object_r:default_t:s0\0");
        assert_eq!(file("/usr/share/x"), "u:usr\0");
        assert_eq!(file("/usr/lib64/y.so"), "u:lib\0");
        assert_eq!(label("/usr/lib64/y.so", Kind::Symlink).unwrap(), "u:usr\0");
        assert_eq!(file("/usr/lib/x.so"), "u:exact\0");
        assert_eq!(file("/usr/local/bin/z"), "u:bin\0");
        assert_eq!(file("/usr/bin/none"), "none");
        assert_eq!((file("/etc/a"), file("/etc/b")), ("u:either\0".into(), "u:either\0".into()));
        assert_eq!(file("/etc/ab"), "system_u:object_r:default_t:s0\0");
        assert_eq!(label("/dev", Kind::Directory).unwrap(), "u:dev\0");
        assert_eq!(file("/dev"), "system_u:object_r:default_t:s0\0");
    }

    #[test]
    fn what_a_match_begins_with_is_known() {
        let of = |pattern: &str| {
            let (prefix, is_exact) = literal(pattern);
            (String::from_utf8(prefix).unwrap(), is_exact)
        };
        let all = [
            ("/a/b", "/a/b", true),
            (r"/a\.b", "/a.b", true),
            ("/ab?c", "/a", false),
            ("/a(/.*)?", "/a", false),
            ("/a|/b", "", false),
            ("/a(b|c)", "/a", false),
            (r"/a\d", "/a", false),
        ];
        for (pattern, prefix, is_exact) in all {
            assert_eq!(of(pattern), (prefix.to_owned(), is_exact), "{pattern}");
        }
        assert_eq!(
            (stem(b"/usr/lib"), stem(b"/usr"), stem(b"/usr/")),
            (&b"/usr"[..], &b""[..], &b"/usr"[..])
        );
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = |text: &str| match FileContexts::parse("policy", text) {
            Err(error) => error.to_string(),
            Ok(contexts) => contexts.find(b"/a", Kind::File).unwrap_err().to_string(),
        };
        assert!(error("/a\n").starts_with("policy, line 1: a line is PATTERN LABEL"));
        assert!(error("\n/a -x u:a").starts_with("policy, line 2: -x is no type"));
        assert!(error("/a(.* u:a").starts_with("policy, line 1: /a(.*: "), "{}", error("/a(.* u:a"));
    }
}
