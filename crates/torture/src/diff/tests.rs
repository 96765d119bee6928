use super::*;
use crate::{Errno, Host, RenameMode};

#[test]
fn two_directories_of_the_host_answer_alike() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut left, mut right) = (Host::new(a.path()).unwrap(), Host::new(b.path()).unwrap());
    let ops = Generator::new(1).take(3000);
    let done = ops.iter().filter(|op| apply(&mut left, op).is_ok()).count();
    assert!(done > ops.len() * 2 / 5, "only {done} of {} made sense", ops.len());
    for op in &ops {
        let _ = apply(&mut right, op);
    }
    assert_eq!(Tree::of(&mut left).unwrap().differences(&Tree::of(&mut right).unwrap()), [""; 0]);
}

#[test]
fn a_failing_sequence_shrinks_to_what_makes_it_fail() {
    let ops = Generator::new(7).take(400);
    let matters = |op: &Op| matches!(op, Op::Rename { mode: RenameMode::Exchange, .. });
    let wanted: Vec<&Op> = ops.iter().filter(|op| matters(op)).take(2).collect();
    let short = shrink(&ops, |ops| wanted.iter().all(|op| ops.contains(op)));
    assert_eq!(short.iter().collect::<Vec<_>>(), wanted);
}

#[test]
fn a_wrong_errno_is_told() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut left, mut right) = (Host::new(a.path()).unwrap(), Host::new(b.path()).unwrap());
    right.mkdir("d", 0o755).unwrap();
    let op = Op::Rmdir { path: "d".into() };
    let difference = compare(&mut left, &mut right, std::slice::from_ref(&op)).unwrap();
    let expected = Difference::Answer { index: 0, op, left: Err(Errno::NOENT), right: Ok(0) };
    assert_eq!(difference, expected);
}
