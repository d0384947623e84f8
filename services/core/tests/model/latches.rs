//! Latches against a model of some plain lines: random commands, clocks, snapshots and restores.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::shard::ShardState;
use holdfast_core::{
    Application, Command, CommandError, CountDown, CreateLatch, Effect, Jobs, LatchCommand, LatchIds, LatchQuery,
    LatchRef, LatchStatus, LatchView, Limits, LocksCommand, Metadata, NamespaceMessage, Path, Query, Response, Rules,
};

use crate::mutations::enable_mutation_from_env;
use crate::random::{SeededRng, namespace};
use crate::{context, run_seeds};

const STEPS_IN_A_RUN: u64 = 200;
const EXPIRES_IN_MS: [u64; 2] = [1_000, 5_000];
const RETAIN_MS: u64 = 60_000;

#[derive(Clone, Debug)]
struct ModelLatch {
    id: u64,
    created: (u64, LatchIds, u64),
    total: u64,
    done: BTreeSet<u64>,
    status: LatchStatus,
    /// When it expires or, with a final status, when it is gone.
    deadline_ms: u64,
}

#[derive(Default)]
struct Model {
    latches: BTreeMap<Path, ModelLatch>,
    clock_ms: u64,
    settled: BTreeSet<Path>,
}

impl Model {
    fn advance(&mut self, now_ms: u64) {
        self.clock_ms = now_ms;
        let clock_ms = self.clock_ms;
        for (path, latch) in &mut self.latches {
            if latch.status == LatchStatus::Active && latch.deadline_ms <= clock_ms {
                (latch.status, latch.deadline_ms) = (LatchStatus::Expired, latch.deadline_ms + RETAIN_MS);
                self.settled.insert(path.clone());
            }
        }
        let settled = &mut self.settled;
        self.latches.retain(|path, latch| {
            let is_gone = latch.status.is_final() && latch.deadline_ms <= clock_ms;
            if is_gone {
                settled.insert(path.clone());
            }
            !is_gone
        });
    }

    fn find(&mut self, wanted: &LatchRef) -> Option<&mut ModelLatch> {
        self.latches.get_mut(&wanted.path).filter(|latch| wanted.id.is_none_or(|id| id == latch.id))
    }

    fn settle(&mut self, path: &Path) {
        let clock_ms = self.clock_ms;
        if let Some(latch) = self.latches.get_mut(path)
            && latch.status == LatchStatus::Active
            && latch.done.len() as u64 == latch.total
        {
            (latch.status, latch.deadline_ms) = (LatchStatus::Completed, clock_ms + RETAIN_MS);
            self.settled.insert(path.clone());
        }
    }

    /// Returns how many were new, unless the command is wrong.
    fn count_down(&mut self, count: &CountDown) -> Option<u64> {
        let numbers: Vec<u64> = match &count.jobs {
            Jobs::Named(ids) => ids.iter().map(|id| id.parse().unwrap()).collect(),
            Jobs::Indexed(ranges) => ranges.iter().flat_map(|(from, to)| *from..=*to).collect(),
        };
        let latch = self.find(&count.latch)?;
        let is_named = matches!(count.jobs, Jobs::Named(_));
        let is_beyond = !is_named && numbers.iter().any(|number| *number >= latch.total);
        if is_named != (latch.created.1 == LatchIds::Named) || is_beyond {
            return None;
        }
        let before = latch.done.len();
        for number in numbers {
            if latch.status == LatchStatus::Active && (latch.done.len() as u64) < latch.total {
                latch.done.insert(number);
            }
        }
        let counted = (latch.done.len() - before) as u64;
        self.settle(&count.latch.path);
        Some(counted)
    }

    fn set_total(&mut self, wanted: &LatchRef, total: u64, if_total: Option<u64>) -> Option<bool> {
        let latch = self.find(wanted)?;
        let is_other = if_total.is_some_and(|expected| expected != latch.total);
        if latch.total == total || latch.status.is_final() || is_other {
            return Some(latch.total == total);
        }
        let is_lower = latch.created.1 == LatchIds::Indexed && total < latch.total;
        if total < latch.done.len() as u64 || is_lower {
            return None;
        }
        latch.total = total;
        self.settle(&wanted.path);
        Some(true)
    }
}

fn is_same(model: Option<&ModelLatch>, view: &LatchView) -> bool {
    model.is_some_and(|latch| {
        (latch.id, latch.status, latch.total, latch.done.len() as u64) == (view.id, view.status, view.total, view.done)
            && (latch.created.1, latch.deadline_ms) == (view.ids, view.deadline_ms)
    })
}

fn latch_ref(dice: &mut SeededRng, model: &Model) -> LatchRef {
    let path = Path::flat(dice.pick(&["a", "b", "c"]));
    let present = model.latches.get(&path).map(|latch| latch.id);
    let other = dice.below(40);
    let id = dice.pick(&[None, present, present, Some(other)]);
    LatchRef { namespace: namespace(), path, id }
}

fn command(dice: &mut SeededRng, model: &Model) -> LatchCommand {
    let latch = latch_ref(dice, model);
    match dice.below(8) {
        0 | 1 => LatchCommand::Create(CreateLatch {
            namespace: namespace(),
            path: latch.path,
            total: dice.below(5),
            ids: dice.pick(&[LatchIds::Named, LatchIds::Indexed]),
            expires_in_ms: dice.pick(&EXPIRES_IN_MS),
            retain_ms: RETAIN_MS,
            description: "d".into(),
            metadata: Metadata::from([("k".into(), "v".into())]),
        }),
        2 => {
            let if_total = if dice.one_in(2) { None } else { Some(dice.below(6)) };
            LatchCommand::SetTotal { latch, total: dice.below(7), if_total }
        }
        3 if dice.one_in(3) => LatchCommand::Delete(latch),
        _ => {
            let numbers: Vec<u64> = (0..1 + dice.below(3)).map(|_| dice.below(6)).collect();
            let jobs = match dice.one_in(2) {
                true => Jobs::Named(numbers.iter().map(u64::to_string).collect()),
                false => Jobs::Indexed(numbers.iter().map(|from| (*from, from + dice.below(2))).collect()),
            };
            LatchCommand::CountDown(CountDown { latch, jobs })
        }
    }
}

struct Run {
    core: ShardState,
    restored: ShardState,
    model: Model,
}

impl Run {
    fn apply(&mut self, now_ms: u64, command: Command) -> Result<Response, CommandError> {
        let context = context(now_ms, Rules::TWO);
        let reply = self.core.apply(&context, &command);
        assert_eq!(self.restored.apply(&context, &command), reply, "one that was restored replies otherwise");
        reply.outcome
    }

    /// One command, compared with what the model does.
    fn step(&mut self, now_ms: u64, command: &LatchCommand) {
        let before = self.core.revision();
        let outcome = self.apply(now_ms, Command::Locks(LocksCommand::Latch(command.clone())));
        match (command, outcome) {
            (LatchCommand::Create(create), Ok(Response::LatchCreated { latch, is_new })) => {
                let created = (create.total, create.ids, create.expires_in_ms);
                assert_eq!(is_new, !self.model.latches.contains_key(&create.path));
                self.model.latches.entry(create.path.clone()).or_insert_with(|| ModelLatch {
                    id: before + 1,
                    created,
                    total: create.total,
                    done: BTreeSet::new(),
                    status: LatchStatus::Active,
                    deadline_ms: now_ms + create.expires_in_ms,
                });
                self.model.settle(&create.path);
                let known = self.model.latches.get(&create.path);
                assert!(is_same(known, &latch) && known.unwrap().created == created, "{known:?} {latch:?}");
            }
            (LatchCommand::Create(create), Err(CommandError::PrimitiveTaken { .. })) => {
                let created = (create.total, create.ids, create.expires_in_ms);
                assert_ne!(self.model.latches[&create.path].created, created);
            }
            (LatchCommand::CountDown(count), Ok(Response::CountedDown { counted, latch })) => {
                assert_eq!(self.model.count_down(count), Some(counted), "{count:?}");
                let known = self.model.latches.get(&latch.path);
                assert!(is_same(known, &latch), "{known:?} {latch:?}");
            }
            (LatchCommand::CountDown(count), Err(refusal)) => {
                assert_eq!(self.model.count_down(count), None, "{count:?}: {refusal}");
            }
            (LatchCommand::SetTotal { latch, total, if_total }, Ok(Response::LatchTotalSet { success, .. })) => {
                assert_eq!(self.model.set_total(latch, *total, *if_total), Some(success), "{command:?}");
            }
            (LatchCommand::SetTotal { latch, total, if_total }, Err(refusal)) => {
                assert_eq!(self.model.set_total(latch, *total, *if_total), None, "{command:?}: {refusal}");
            }
            (LatchCommand::Delete(latch), Ok(Response::Done)) => {
                if self.model.find(latch).is_some() {
                    self.model.latches.remove(&latch.path);
                    self.model.settled.insert(latch.path.clone());
                }
            }
            (command, outcome) => panic!("{command:?} gives {outcome:?}"),
        }
    }

    /// Compares everything that can be seen, and who has to be told.
    fn compare(&mut self) {
        self.core.verify();
        let list = LatchQuery::List { namespace: namespace(), prefix: Path::default(), after: None, limit: 100 };
        let Ok(Response::Latches { latches, more: false }) = self.core.query(0, &Query::Latch(list)).outcome else {
            panic!("a page of latches")
        };
        assert!(latches.iter().map(|latch| &latch.path).eq(self.model.latches.keys()));
        for latch in &latches {
            assert!(is_same(self.model.latches.get(&latch.path), latch), "{:?} {latch:?}", self.model.latches);
            let wanted = LatchRef { namespace: namespace(), path: latch.path.clone(), id: Some(latch.id) };
            let query = Query::Latch(LatchQuery::Get { latch: wanted, after: None, limit: 100 });
            let Ok(Response::LatchJobs { done, .. }) = self.core.query(0, &query).outcome else { panic!("its jobs") };
            let done: BTreeSet<u64> = match done {
                Jobs::Named(ids) => ids.iter().map(|id| id.parse().unwrap()).collect(),
                Jobs::Indexed(ranges) => ranges.into_iter().flat_map(|(from, to)| from..=to).collect(),
            };
            assert_eq!(done, self.model.latches[&latch.path].done);
        }
        let effects = self.core.take_effects();
        let settled = effects.into_iter().filter_map(|effect| match effect {
            Effect::LatchSettled { path, .. } => Some(path),
            _ => None,
        });
        assert_eq!(settled.collect::<BTreeSet<_>>(), std::mem::take(&mut self.model.settled));
        self.restored.drop_effects();
    }

    fn restore(&mut self) {
        let chunks = self.core.snapshot();
        self.restored = ShardState::restore(Application::Locks, "locks_00", &chunks).expect("it can be restored");
        assert_eq!(self.restored.snapshot(), chunks);
        self.restored.verify();
    }
}

fn run(seed: u64) {
    let dice = &mut SeededRng::new(seed);
    let core = ShardState::new(Application::Locks, "locks_00");
    let mut run = Run { restored: core.clone(), core, model: Model::default() };
    let mut now_ms = 1_000;
    let message = NamespaceMessage::open(namespace(), Limits::default());
    let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
    run.core.advance(&context(now_ms, Rules::TWO));
    run.restored.advance(&context(now_ms, Rules::TWO));
    run.apply(now_ms, Command::Locks(open)).expect("it is opened");
    for _ in 0..STEPS_IN_A_RUN {
        now_ms += dice.pick(&[0, 1, 300, 1_000, 1_000, 30_000]);
        run.core.advance(&context(now_ms, Rules::TWO));
        run.restored.advance(&context(now_ms, Rules::TWO));
        run.model.advance(now_ms);
        let command = command(dice, &run.model);
        run.step(now_ms, &command);
        run.compare();
        if dice.one_in(10) {
            run.restore();
        }
    }
    run.core.advance(&context(now_ms + 10 * RETAIN_MS, Rules::TWO));
    run.model.advance(now_ms + 10 * RETAIN_MS);
    assert!(run.model.latches.is_empty());
    run.compare();
}

#[test]
fn latches_do_what_their_model_does() {
    enable_mutation_from_env();
    run_seeds(STEPS_IN_A_RUN, run);
}
