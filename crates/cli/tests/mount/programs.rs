//! Programs that know nothing of all this.

use crate::bed::{Bed, can_mount, text};
use crate::testbed::{assert_same, have, look, run};
use std::fs;

/// A directory with a bit of everything.
fn source() -> tempfile::TempDir {
    let source = tempfile::tempdir().unwrap();
    let script = "mkdir -p a/b/c; for n in $(seq 300); do echo $n > a/b/f$n; done; head -c 1500000 /dev/urandom > a/big; \
                  ln a/b/f1 a/hard; ln -s b/f2 a/soft; mkfifo a/pipe; truncate -s 3M a/hole; \
                  printf x | dd of=a/hole bs=1 seek=2000000 conv=notrunc 2>/dev/null; touch -d '1985-10-26 01:21:00.987654321' a/b/f3; \
                  chmod 2751 a/b/c; chmod 600 a/b/f4";
    run("sh", &["-c", &format!("set -e; cd '{}'; {script}", source.path().display())]);
    source
}

#[test]
fn copies_and_archives_keep_everything() {
    if !can_mount() || !have("setfattr") || !have("setfacl") || !have("tar") {
        return;
    }
    let source = source();
    let mut bed = Bed::new("64M", &[], "");
    run("cp", &["-a", &format!("{}/.", text(source.path())), text(&bed.at)]);
    run(
        "diff",
        &["-r", "--no-dereference", "-x", "lost+found", "-x", "pipe", text(source.path()), text(&bed.at)],
    );
    assert_same("a copy", &look(&bed.at), &look(source.path()));
    bed.shell("setfattr -n user.origin -v 'somewhere' a/big; setfacl -m u:12:rw a/b/f9; test $(du -k a/hole | cut -f1) -lt 100");
    bed.shell("tar --acls --xattrs -S -cf ../t.tar a; mkdir back; tar --acls --xattrs -C back -xf ../t.tar");
    bed.shell("test $(du -k back/a/hole | cut -f1) -lt 100");
    assert_same("an archive", &look(&bed.path("back/a")), &look(&bed.path("a")));
    bed.shell("rm -rf a");
    let expected = look(&bed.at);
    bed.umount();
    bed.mount("ro");
    assert_same("after another mount", &look(&bed.at), &expected);
    bed.umount();
}

#[test]
fn git_works() {
    if !can_mount() || !have("git") {
        return;
    }
    let source = source();
    let mut bed = Bed::new("64M", &[], "");
    run("cp", &["-a", &format!("{}/a", text(source.path())), text(&bed.at)]);
    let git = "git -c user.name=n -c user.email=e -c safe.directory=* -c gc.auto=0";
    bed.shell(&format!(
        "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; rm a/pipe; rmdir a/b/c; git init -q .; {git} add a; {git} commit -qm one; echo more >> a/b/f1; \
         {git} commit -qam two; {git} gc -q; {git} fsck --strict; {git} clone -q . clone; {git} -C clone status --porcelain; \
         test -z \"$({git} status --porcelain a)\"; diff -r a clone/a"
    ));
    bed.umount();
}

#[test]
fn sqlite_and_locks_work() {
    if !can_mount() || !have("python3") || !have("flock") {
        return;
    }
    let mut bed = Bed::new("32M", &[], "");
    bed.python(
        "import sqlite3\n\
         for mode in ('delete', 'wal'):\n\
         \x20 c = sqlite3.connect(mode + '.db'); c.execute('pragma journal_mode=' + mode); c.execute('pragma synchronous=full')\n\
         \x20 c.execute('create table t(a integer primary key, b text)')\n\
         \x20 for n in range(30):\n\
         \x20   with c: c.executemany('insert into t(b) values (?)', [('x' * n,) for _ in range(20)])\n\
         \x20 assert c.execute('select count(*) from t').fetchone()[0] == 600\n\
         \x20 assert c.execute('pragma integrity_check').fetchone()[0] == 'ok'\n\
         \x20 c.close()\n",
    );
    bed.shell("flock -n lock sh -c '! flock -n lock true && flock -n other true'; flock -n lock true");
    bed.python(
        "import fcntl\n\
         f = open('range', 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)\n\
         if os.fork() == 0:\n\
         \x20 g = open('range', 'w')\n\
         \x20 try: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5); os._exit(1)\n\
         \x20 except OSError: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10); os._exit(0)\n\
         assert os.wait()[1] == 0",
    );
    bed.umount();
}

#[test]
fn five_hundred_programs_create_at_once() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("32M", &[], "");
    bed.shell("for n in $(seq 500); do (echo $n > file$n) & done; wait; test $(ls | grep -c file) = 500");
    for n in [1, 250, 500] {
        assert_eq!(fs::read_to_string(bed.path(&format!("file{n}"))).unwrap(), format!("{n}\n"));
    }
    bed.umount();
}
