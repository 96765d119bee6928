//! Bugs planted in the file system, each a change in one place of its source. Crash tests that miss
//! such a bug are too weak.
//!
//! Production code does not know about them: [`super::mutation`] plants them in a copy of the tree.
//! When the source in a place changes, its mutant here must be updated. `--mutants 0/1` fails if
//! any mutant does not match, and a test checks that most do.

/// A bug: a piece of source and its replacement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// Path of the source file.
    pub(crate) file: &'static str,
    /// Statements if it ends with `;`, otherwise an expression.
    pub(crate) find: &'static str,
    pub(crate) put: &'static str,
    /// Which occurrence in the file, and the number of occurrences.
    pub(crate) occurrence: (usize, usize),
    /// What must catch it.
    pub(crate) finder: Finder,
}

/// What searches for a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finder {
    /// The workloads of the search.
    Workloads,
    /// The cases of `extant_torture::cases`.
    Cases,
    /// Tests of this program whose names contain the string; one of them must fail.
    Test(&'static str, &'static str),
}

impl Mutant {
    /// Whether it concerns only volumes without a journal.
    pub(crate) fn is_unjournaled(&self) -> bool {
        self.name.starts_with("no-journal")
    }
}

const fn mutant(name: &'static str, file: &'static str, find: &'static str, put: &'static str) -> Mutant {
    Mutant { name, file, find, put, occurrence: (0, 1), finder: Finder::Workloads }
}

const fn nth(nth: usize, of: usize, mutant: Mutant) -> Mutant {
    Mutant { occurrence: (nth, of), ..mutant }
}

const fn found_by(finder: Finder, mutant: Mutant) -> Mutant {
    Mutant { finder, ..mutant }
}

/// All mutants.
pub(crate) const MUTANTS: &[Mutant] = &[
    mutant(
        "commit-block-without-flush",
        "crates/cache/src/blocks/life.rs",
        "bio.flags = BioFlags::PREFLUSH | BioFlags::FUA | BioFlags::SYNC | BioFlags::META;",
        "bio.flags = BioFlags::FUA | BioFlags::SYNC | BioFlags::META;",
    ),
    mutant(
        "commit-block-stays-in-cache",
        "crates/cache/src/blocks/life.rs",
        "bio.flags = BioFlags::PREFLUSH | BioFlags::FUA | BioFlags::SYNC | BioFlags::META;",
        "bio.flags = BioFlags::PREFLUSH | BioFlags::SYNC | BioFlags::META;",
    ),
    mutant(
        "commit-block-before-log",
        "crates/fs/src/journal/commit.rs",
        r#"log.write(&image.blocks, |i| ring.step(start, i as u32)).await?;
        self.lock().check_alive()?;
        let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await"#,
        r#"let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        let durable = self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await?;
        log.write(&image.blocks, |i| ring.step(start, i as u32)).await?;
        Ok(durable)"#,
    ),
    mutant(
        "log-lacks-last-block",
        "crates/fs/src/journal/commit.rs",
        r#"log.write(&image.blocks, |i| ring.step(start, i as u32)).await?;
        self.lock().check_alive()?;
        let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await"#,
        r#"let short = image.blocks.len() - 1;
        log.write(&image.blocks[..short], |i| ring.step(start, i as u32)).await?;
        let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await"#,
    ),
    mutant(
        "log-start-not-written",
        "crates/fs/src/journal/commit.rs",
        "log.write_superblock(Some(start), versions.tid.sequence(), None, None).await?;",
        "log.superblock.lock().started = true;",
    ),
    mutant(
        "no-revokes",
        "crates/fs/src/journal/commit.rs",
        "log.image(versions.tid.sequence(), &transaction.revokes, &versions.blocks)",
        "log.image(versions.tid.sequence(), &Default::default(), &versions.blocks)",
    ),
    mutant(
        "home-before-commit",
        "crates/fs/src/journal/commit.rs",
        r#"log.write(&image.blocks, |i| ring.step(start, i as u32)).await?;
        self.lock().check_alive()?;
        let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await"#,
        r#"let list = versions.blocks.iter().map(|(b, v)| (b.number().0, v.bytes().clone())).collect();
        let blocks = self.store.blocks();
        super::log::write_blocks(&**blocks.device(), blocks.block_bytes(), list).await?;
        log.write(&image.blocks, |i| ring.step(start, i as u32)).await?;
        self.lock().check_alive()?;
        let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await"#,
    ),
    mutant(
        "inode-left-out-of-commit",
        "crates/fs/src/journal/commit.rs",
        "transaction.inodes.chunks(16)",
        "transaction.inodes[..transaction.inodes.len().saturating_sub(1)].chunks(16)",
    ),
    mutant("freed-block-is-logged", "crates/fs/src/journal/handle.rs", "running.blocks.remove(&n);", ""),
    mutant(
        "freed-block-is-written-home",
        "crates/fs/src/journal/state.rs",
        "self.homes.range(run.start.0..run.end().0).map(|(&n, _)| n).collect()",
        "Vec::new()",
    ),
    mutant(
        "older-version-is-written-home",
        "crates/fs/src/journal/state.rs",
        "self.homes.insert(version.number(), Home { tid, version })",
        "match self.homes.contains_key(&version.number()) { true => { self.is_home(tid); None } false => self.homes.insert(version.number(), Home { tid, version }) }",
    ),
    mutant(
        "log-does-not-wrap",
        "crates/fs/src/journal/ring.rs",
        "(at % u64::from(self.len()))",
        "at.min(u64::from(self.len()) - 1)",
    ),
    mutant(
        "tail-moves-before-home-writes",
        "crates/fs/src/journal/checkpoint.rs",
        r#"self.flush().await?;
        let (start, tid) = {
            let mut state = self.lock();
            state.check_alive()?;
            state.homes_durable(&written);
            state.tail()
        };
        self.behind_flush(log.write_superblock(Some(start), tid.sequence(), None, Some(&self.disk))).await?;
        self.lock().tail_moved(start, tid);"#,
        r#"let (start, tid) = {
            let mut state = self.lock();
            state.check_alive()?;
            state.homes_durable(&written);
            state.tail()
        };
        log.write_superblock(Some(start), tid.sequence(), None, None).await?;
        self.lock().tail_moved(start, tid);"#,
    ),
    mutant(
        "checkpoint-forgets-a-block",
        "crates/fs/src/journal/checkpoint.rs",
        "homes.into_iter().map(|(n, _, bytes)| (n, bytes)).collect()",
        "homes.into_iter().skip(1).map(|(n, _, bytes)| (n, bytes)).collect()",
    ),
    mutant(
        "checkpoint-writes-nothing",
        "crates/fs/src/journal/checkpoint.rs",
        "homes.into_iter().map(|(n, _, bytes)| (n, bytes)).collect()",
        "Vec::new()",
    ),
    mutant(
        "old-flush-counts",
        "crates/fs/src/journal/flushes.rs",
        "self.succeeded > mark",
        "self.succeeded >= mark",
    ),
    mutant(
        "commit-returns-one-early",
        "crates/fs/src/journal/mod.rs",
        "state.committed >= upto",
        "state.committed.next() >= upto",
    ),
    nth(
        0,
        4,
        mutant(
            "replay-not-flushed",
            "crates/fs/src/recovery/replay.rs",
            "extant_block::flush(&*device).await?;",
            "",
        ),
    ),
    nth(
        1,
        4,
        mutant(
            "clean-flag-before-empty-log",
            "crates/fs/src/recovery/replay.rs",
            "extant_block::flush(&*device).await?;",
            "",
        ),
    ),
    mutant(
        "replay-ignores-revokes",
        "crates/fs/src/recovery/scan.rs",
        "found.copies.remove(&block).is_some()",
        "false",
    ),
    mutant(
        "replay-without-commit-block",
        "crates/fs/src/recovery/scan.rs",
        "header.and_then(|header| header.kind)",
        "match header.and_then(|header| header.kind) { None => { apply(log, &mut found, std::mem::replace(&mut open, fresh()))?; None } some => some }",
    ),
    mutant(
        "replay-takes-oldest-copy",
        "crates/fs/src/recovery/scan.rs",
        "found.copies.insert(tag.block, journaled);",
        "found.copies.entry(tag.block).or_insert(journaled);",
    ),
    mutant(
        "volume-not-marked-in-use",
        "crates/fs/src/volume/marks.rs",
        "sb.add_features(Compat::empty(), Incompat::RECOVER, present);",
        "sb.add_features(Compat::empty(), Incompat::empty(), present);",
    ),
    mutant(
        "orphans-not-finished",
        "crates/fs/src/volume/mount.rs",
        "Self::finish_orphans(&mounted.namespace, orphans).await?",
        "0",
    ),
    mutant(
        "sync-without-commit",
        "crates/fs/src/volume/mount.rs",
        "writer.journal.commit(writer.journal.running()).await?;",
        "",
    ),
    mutant(
        "clean-flag-before-close",
        "crates/fs/src/volume/mount.rs",
        "writer.journal.close().await?;",
        r#"if let Some(marks) = &mount.marks {
                marks.close(writer).await?;
            }
            writer.journal.close().await?;"#,
    ),
    nth(
        1,
        2,
        mutant(
            "log-emptied-without-home-writes",
            "crates/fs/src/journal/checkpoint.rs",
            "self.write_home().await?",
            "Vec::new()",
        ),
    ),
    mutant("synchronous-write-leaves-the-size", "crates/fs/src/file/fsync.rs", "self.size()", "0"),
    mutant(
        "synchronous-rewrite-without-commit",
        "crates/fs/src/file/fsync.rs",
        "let _sync = contents.writer.disk.begin_sync();",
        r#"let _sync = contents.writer.disk.begin_sync();
        if contents.is_emptied() && bytes != ByteRange::ALL {
            return self.pages.sync_range(bytes).await.map_err(cache_error);
        }"#,
    ),
    mutant("fsync-without-commit", "crates/fs/src/file/fsync.rs", "journal.commit(tid).await?;", ""),
    mutant(
        "fsync-without-flush",
        "crates/fs/src/file/fsync.rs",
        "journal.flush_since(written).await",
        "Ok(())",
    ),
    mutant(
        "directory-fsync-does-nothing",
        "crates/fs/src/names/node.rs",
        "self.writer().guarded(journal.commit(journal.running())).await",
        "Ok(())",
    ),
    mutant(
        "rename-in-two-transactions",
        "crates/fs/src/names/rename.rs",
        "writer.journal.start(Credits(credits)).await?",
        r#"{
            {
                let mut handle = writer.journal.start(Credits(credits)).await?;
                let (source, kind) = (self.source.number(), self.source_kind);
                let to = self.to.as_mut().unwrap_or(&mut self.from);
                if let Ok(spot) = &looked {
                    to.set(&mut handle, (spot, self.new), source, kind);
                }
            }
            writer.journal.commit(writer.journal.running()).await?;
            writer.journal.start(Credits(credits)).await?
        }"#,
    ),
    mutant(
        "replacement-not-written-first",
        "crates/fs/src/names/rename.rs",
        "self.write_back_replacement(name, new_dir, new_name).await?;",
        "",
    ),
    mutant(
        "parent-entry-stays",
        "crates/fs/src/names/rename.rs",
        "moved.set_parent(&mut handle, to_cell.number());",
        "",
    ),
    mutant(
        "unlinked-file-is-no-orphan",
        "crates/fs/src/names/remove.rs",
        "writer.orphans.add(handle, victim, Orphan::Unnamed);",
        "",
    ),
    mutant("parent-link-count-stays", "crates/fs/src/names/remove.rs", "drop_dir_link(&mut record);", ""),
    mutant(
        "link-not-counted",
        "crates/fs/src/names/link.rs",
        "record.raw.i_links_count = (links + 1).into();",
        "",
    ),
    mutant(
        "orphan-not-in-superblock",
        "crates/fs/src/inode/orphans.rs",
        "handle.superblock().raw_mut().s_last_orphan = number.0.into();",
        "",
    ),
    mutant(
        "orphan-stays-on-list",
        "crates/fs/src/inode/orphans.rs",
        "handle.superblock().raw_mut().s_last_orphan = before.into()",
        "()",
    ),
    mutant(
        "deleted-inode-stays-orphan",
        "crates/fs/src/names/delete_inode.rs",
        "writer.orphans.finish(handle, cell);",
        "",
    ),
    mutant(
        "early-reuse",
        "crates/fs/src/alloc/blocks.rs",
        "handle.release(run.clusters(self.shared.sb().cluster_size()));",
        "if metadata { handle.release(run.clusters(self.shared.sb().cluster_size())); } else { self.shared.settle(run); }",
    ),
    mutant(
        "allocation-not-in-bitmap",
        "crates/fs/src/alloc/blocks.rs",
        "set_bits(&mut bytes, span.start, span.end());",
        "",
    ),
    mutant(
        "freed-stays-in-bitmap",
        "crates/fs/src/alloc/blocks.rs",
        "clear_bits(&mut bytes, span.start, span.end());",
        "",
    ),
    mutant(
        "free-count-stays",
        "crates/fs/src/alloc/blocks.rs",
        "handle.group(group).free_blocks -= span.len;",
        "",
    ),
    mutant(
        "inode-not-in-bitmap",
        "crates/fs/src/alloc/numbers.rs",
        "set_bits(&mut bytes, index, index + 1);",
        "",
    ),
    nth(
        0,
        2,
        mutant(
            "no-journal-data-not-flushed",
            "crates/fs/src/journal/unlogged/mod.rs",
            "self.flush().await?;",
            "",
        ),
    ),
    nth(
        1,
        2,
        mutant(
            "no-journal-phases-not-flushed",
            "crates/fs/src/journal/unlogged/mod.rs",
            "self.flush().await?;",
            "",
        ),
    ),
    mutant(
        "no-journal-marks-with-all-else",
        "crates/fs/src/journal/unlogged/mod.rs",
        "has_fresh_names && matches!(kind, MetaKind::Descriptors(_))",
        "false",
    ),
    mutant(
        "no-journal-shorter-size-before-nodes",
        "crates/fs/src/journal/unlogged/mod.rs",
        "resized.contains(&inode.number)",
        "false",
    ),
    found_by(
        Finder::Test("unlogged", "a_file_that_replaces_another_is_never_missing"),
        mutant(
            "no-journal-freed-at-once",
            "crates/fs/src/journal/unlogged/mod.rs",
            "in_use.map_or_else(|| version.bytes().clone(), Arc::new)",
            "version.bytes().clone()",
        ),
    ),
    mutant(
        "second-block-of-revokes-left-out",
        "crates/fs/src/journal/log.rs",
        "image.blocks.push(Arc::new(block));",
        "if image.blocks.is_empty() { image.blocks.push(Arc::new(block)); }",
    ),
    found_by(
        Finder::Cases,
        mutant("magic-is-not-escaped", "crates/fs/src/journal/log.rs", "!needs_escape(version)", "true"),
    ),
    found_by(
        Finder::Cases,
        mutant(
            "replay-leaves-the-escape",
            "crates/fs/src/recovery/scan.rs",
            "tag.flags.contains(TagFlags::ESCAPE)",
            "false",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "beside::no_home_write_comes_over_the_next_owner_of_a_freed_block"),
        mutant(
            "freed-beside-home-writes",
            "crates/fs/src/journal/state.rs",
            r#"self.unreleased.push((tid, freed));
            return Vec::new();"#,
            r#"self.releasing += 1;
            return freed;"#,
        ),
    ),
    found_by(
        Finder::Cases,
        mutant(
            "tail-ignores-one-pending-block",
            "crates/fs/src/journal/state.rs",
            "log.logged.iter().find(|logged| logged.pending > 0)",
            "log.logged.iter().find(|logged| logged.pending > 1)",
        ),
    ),
    found_by(
        Finder::Cases,
        mutant(
            "tail-skips-what-is-being-committed",
            "crates/fs/src/journal/state.rs",
            "(committing.start.unwrap_or(log.ring.head()), committing.tid)",
            "{ let _ = committing; (log.ring.head(), self.running.tid) }",
        ),
    ),
    found_by(
        Finder::Cases,
        mutant(
            "newer-version-counts-as-home",
            "crates/fs/src/journal/state.rs",
            r#"if self.homes.get(&n).is_some_and(|home| home.tid == tid) {
                if let Some(home) = self.homes.remove(&n) {
                    home.version.checkpointed();
                }
                self.is_home(tid);
            }"#,
            r#"let _ = tid;
            if let Some(home) = self.homes.remove(&n) {
                let newest = home.tid;
                home.version.checkpointed();
                self.is_home(newest);
            }"#,
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "journalled::no_replay_comes_over_the_next_owner_of_freed_blocks"),
        mutant(
            "first-block-of-a-run-is-revoked",
            "crates/fs/src/journal/handle.rs",
            "running.revokes.insert(n);",
            "if n == run.start.0 { running.revokes.insert(n); }",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "journal::tests::a_revoke_voids_older_copies_and_no_newer_ones"),
        mutant(
            "revoke-outlives-a-new-copy",
            "crates/fs/src/journal/handle.rs",
            "running.revokes.remove(&block.number().0)",
            "false",
        ),
    ),
    mutant(
        "node-is-not-revoked",
        "crates/fs/src/map/change.rs",
        "alloc.free(handle, pins, PhysicalRun::new(at, 1), true)",
        "alloc.free(handle, pins, PhysicalRun::new(at, 1), false)",
    ),
    found_by(
        Finder::Test("extant_fs", "steps::a_file_that_shrinks_in_steps_is_whole_or_cut_after_each"),
        mutant(
            "shrinking-file-is-no-orphan",
            "crates/fs/src/file/resize.rs",
            "orphans.add(handle, &contents.cell, Orphan::Shrinking);",
            "",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "steps::a_file_that_shrinks_in_steps_is_whole_or_cut_after_each"),
        mutant(
            "last-step-records-the-smaller-size",
            "crates/fs/src/file/resize.rs",
            "if orphans.are_recorded() { step.first } else { step.last }",
            "step.last",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "steps::a_file_that_shrinks_in_steps_is_whole_or_cut_after_each"),
        mutant(
            "shrunk-file-stays-an-orphan",
            "crates/fs/src/file/resize.rs",
            "orphans.remove(handle, &contents.cell, Orphan::Shrinking);",
            "",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "steps::a_file_that_is_deleted_in_steps_is_whole_or_gone_after_each"),
        mutant(
            "first-step-frees-the-inode",
            "crates/fs/src/names/delete_inode.rs",
            "step.last",
            "step.first",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "ahead::a_crash_cuts_off_what_was_written_before_the_bytes_in_front_of_it"),
        mutant(
            "blocks-ahead-make-no-orphan",
            "crates/fs/src/file/size_on_disk.rs",
            "live.map.size.is_ahead(recorded_bytes)",
            "false",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "ahead::a_crash_cuts_off_what_was_written_before_the_bytes_in_front_of_it"),
        mutant(
            "blocks-that-land-ahead-make-no-orphan",
            "crates/fs/src/file/size_on_disk.rs",
            "self.note_ahead(handle, live, bytes);",
            "",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "beside::a_commit_beside_write_back_shows_no_block_before_its_data"),
        mutant(
            "map-before-the-data",
            "crates/fs/src/file/backing.rs",
            "self.place(&run, is_journalled).await.map_err(refusal)",
            r#"{
            let placed = self.place(&run, is_journalled).await.map_err(refusal)?;
            let on_device = placed.extents.iter().filter(|extent| extent.to != extant_cache::WriteTo::Backing);
            let landed = |extent| extant_cache::WrittenExtent { extent, result: Ok(()), bytes: None };
            let extents = on_device.map(|&extent| landed(extent));
            let early = WrittenRun { extents: extents.collect(), size_bytes: run.size_bytes };
            self.finish(&early).await.map_err(refusal)?;
            Ok(placed)
        }"#,
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "beside::a_commit_beside_a_direct_write_shows_no_block_before_its_data"),
        mutant(
            "map-before-the-direct-data",
            "crates/fs/src/file/direct.rs",
            "self.write_placed(held, &placed).await",
            r#"{
            placed.size_bytes = self.size().max(bytes.end);
            contents.finish(&placed).await?;
            self.write_placed(held, &placed).await
        }"#,
        ),
    ),
    found_by(
        Finder::Cases,
        mutant(
            "preallocated-blocks-are-written",
            "crates/fs/src/file/fallocate.rs",
            "placed.push(unwritten(run.until(at), to));",
            "placed.push(crate::map::change::written(run.until(at), to));",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "sizes::the_past_of_a_larger_file_is_not_read_when_it_grows"),
        mutant(
            "rest-of-the-last-block-is-stale",
            "crates/fs/src/file/resize.rs",
            "contents.ends_in_data(old).await?",
            "false",
        ),
    ),
    found_by(
        Finder::Test("extant_fs", "journalled::a_file_may_be_journalled_for_a_while"),
        mutant(
            "journalled-data-are-not-home-first",
            "crates/fs/src/file/data_journal.rs",
            "contents.writer.journal.commit_home().await",
            "Ok(())",
        ),
    ),
    found_by(
        Finder::Test("unlogged", "a_file_that_replaces_another_is_never_missing"),
        mutant(
            "no-journal-name-leaves-early",
            "crates/fs/src/journal/unlogged/names.rs",
            "both.map_or(Step::Added, Step::AddedThenRemoved)",
            "{ drop(both); Step::Added }",
        ),
    ),
    found_by(
        Finder::Test("unlogged", "data_outlive_the_split_of_a_leaf_of_their_map"),
        mutant("no-journal-nodes-in-place", "crates/fs/src/map/change.rs", "draft.copy_changed();", ""),
    ),
    found_by(
        Finder::Test("unlogged", "a_table_of_inodes_shows_nothing_that_was_there_before_the_volume"),
        mutant(
            "no-journal-fresh-blocks-with-all-else",
            "crates/fs/src/journal/unlogged/mod.rs",
            "!is_bitmap && transaction.fresh.contains(&n)",
            "false",
        ),
    ),
];
