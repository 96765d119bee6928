//! Programs that get signals while a device does not answer.

use crate::bed::{Bed, can_mount, extant, text};
use crate::testbed::{Ran, fsck, have};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

/// A server of a volume that can be stopped.
struct Nbd(Pid);

impl Nbd {
    fn new(bed: &Bed) -> (Self, String) {
        let dir = bed.image.parent().unwrap();
        let (socket, number) = (dir.join("socket"), dir.join("number"));
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.args(["-U", text(&socket), "-P", text(&number), "file", text(&bed.image)]);
        // It returns once its other half listens, which then writes its number.
        assert!(nbdkit.stdin(Stdio::null()).status().unwrap().success());
        let pid = loop {
            let told = fs::read_to_string(&number).ok().and_then(|number| number.trim().parse().ok());
            match told {
                Some(pid) => break pid,
                None => std::thread::yield_now(),
            }
        };
        (Self(Pid::from_raw(pid).unwrap()), format!("nbd+unix:///?socket={}", socket.display()))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }

    /// Stops it, and returns when none of its threads runs any more.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.0.as_raw_nonzero());
        let is_stopped = |task: std::io::Result<fs::DirEntry>| {
            let status = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            status.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while !fs::read_dir(&tasks).unwrap().all(is_stopped) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// A program that is about to make one system call.
struct Program(Child, BufReader<std::process::ChildStdout>);

impl Program {
    fn new(bed: &Bed, before: &str, call: &str) -> Self {
        let program = format!(
            "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *of: None)\nos.chdir({:?})\n{before}\n\
             print('begun', flush=True); input(); print('calls', flush=True); print({call})",
            text(&bed.at)
        );
        let mut python = Command::new("python3");
        python.args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = python.spawn().unwrap();
        let told = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self(child, told);
        assert_eq!(program.line(), "begun\n");
        program
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Has it make the call, and returns when it waits for that.
    fn call(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.line(), "calls\n");
        loop {
            let status = fs::read_to_string(format!("/proc/{}/stat", self.pid().as_raw_nonzero())).unwrap();
            match status.rsplit_once(") ").unwrap().1.chars().next().unwrap() {
                'S' | 'D' => return,
                state => assert_eq!(state, 'R'),
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_program_that_is_killed_ends_though_the_device_does_not_answer() {
    if !can_mount() || !have("nbdkit") || !have("python3") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::create_dir(source.path().join(name)).unwrap();
        fs::write(source.path().join(name).join("file"), name.repeat(1 << 20)).unwrap();
    }
    let bed = Bed::unmounted("16M", &["-d", text(source.path())]);
    let (nbd, address) = Nbd::new(&bed);
    let run = |args: &[&str]| -> Ran {
        let ran = extant(args);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
        ran
    };
    run(&["mount", &address, text(&bed.at)]);
    let mut syncs = Program::new(&bed, "f = open('new', 'w'); f.write('x' * 9000); f.flush()", "os.fsync(f)");
    // A directory's block may have been read with a neighbour; contents have not.
    let mut reads = ["a", "b", "c"]
        .map(|dir| Program::new(&bed, "", &format!("os.listdir('{dir}'), open('{dir}/file').read(1)")));
    nbd.stop();
    syncs.call();
    reads.iter_mut().for_each(Program::call);
    let [mut killed, mut warned, mut goes_on] = reads;
    for program in [&warned, &goes_on] {
        kill_process(program.pid(), Signal::USR1).unwrap();
    }
    for program in [&mut syncs, &mut killed, &mut warned] {
        kill_process(program.pid(), Signal::KILL).unwrap();
        assert_eq!(program.0.wait().unwrap().signal(), Some(9));
    }
    // A signal that kills nobody stops nothing.
    nbd.signal(Signal::CONT);
    assert_eq!(goes_on.line(), "['file'] c\n");
    assert!(goes_on.0.wait().unwrap().success());
    assert_eq!(fs::read_to_string(bed.path("b/file")).unwrap(), "b".repeat(1 << 20));
    assert_eq!(fs::read(bed.path("new")).unwrap().len(), 9000);
    run(&["umount", text(&bed.at)]);
    drop(nbd);
    fsck(&bed.image);
}
