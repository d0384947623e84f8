//! The lock engine against a naive model: random commands, and after each of them everything that can be seen is equal.
//!
//! A run takes some seconds. `HOLDFAST_MODEL_STEPS` asks for another number of steps, `HOLDFAST_MODEL_SEED` for another
//! start; a failure prints the seed of the run that failed.

mod acquire;
mod asks;
mod attempts;
mod barriers;
mod barriers_model;
mod charge;
mod commands;
mod compare;
mod conditions;
mod conditions_model;
mod graph;
mod latches;
mod ledger;
mod mutations;
mod permits_model;
mod pools;
mod pools_model;
mod quota;
mod random;
mod report;
mod restored_replicas;
mod run;
mod semaphores;
mod session_commands;
mod sessions;
mod soft_clients;
mod soft_rebuilds;
mod soft_tables;
mod state;
mod sweeps;
mod together;
mod together_commands;

use std::panic::RefUnwindSafe;

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireAtLeast, Bounds, CancelAttempts, Command, CommandError, Effect, EntryContext, JobState, LocksCommand,
    NamespaceMessage, Reattach, Response, Rules,
};

use compare::check_cycle;
use random::{SeededRng, Workload, namespace};
use restored_replicas::RestoredReplicas;
use state::Model;

const WALL_AHEAD_MS: u64 = 1_700_000_000_000;
const STEPS_IN_A_RUN: u64 = 150;

fn context(now_ms: u64, rules: Rules) -> EntryContext {
    EntryContext { now_ms, wall_ms: WALL_AHEAD_MS + now_ms, rules }
}

/// A shard, its twins, the model beside it, and all that was done to them.
struct Run {
    core: ShardState,
    twins: RestoredReplicas,
    model: Model,
    log: Vec<(EntryContext, Vec<Command>)>,
    now_ms: u64,
    rules: Rules,
}

impl Run {
    fn new(dice: &mut SeededRng, own_bounds: Option<Bounds>) -> Self {
        let rules = dice.pick(&[Rules::ONE, Rules::TWO, Rules::TWO]);
        let limits = random::limits(dice, rules);
        let message = NamespaceMessage::open(namespace(), limits.clone());
        let open = Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
        let context = context(1_000, rules);
        let bounds = own_bounds.clone().unwrap_or(Bounds::of(rules));
        let mut twins = RestoredReplicas::new(own_bounds, dice);
        let mut core = twins.new_shard();
        core.advance(&context);
        twins.advance(&context);
        let reply = core.apply(&context, &open);
        twins.apply(&context, &open, &reply);
        let mut model = Model::new(namespace(), limits, bounds);
        model.advance(&context);
        Self { core, twins, model, log: vec![(context, vec![open])], now_ms: 1_000, rules }
    }

    /// One entry of the log with some commands, done to both.
    fn entry(&mut self, passed_ms: u64, commands: u64, mut next: impl FnMut(&Model) -> Command) {
        self.now_ms += passed_ms;
        let context = context(self.now_ms, self.rules);
        let first_event = self.model.events.len();
        self.core.advance(&context);
        self.twins.advance(&context);
        let before = self.model.clone();
        self.model.advance(&context);
        self.model.enforce_byte_limits();
        let passed = (self.core.revision(), self.core.next_deadline_ms());
        assert_eq!(passed, (self.model.revision, self.model.next_deadline()), "after\n{}", before.describe());
        self.log.push((context, vec![]));
        for _ in 0..commands {
            let command = next(&self.model);
            self.log.last_mut().expect("just pushed").1.push(command.clone());
            self.command(&context, &command);
        }
        let expected = sorted(self.model.take_effects(first_event));
        let effects = self.core.take_effects();
        self.twins.end_entry(&self.core, &effects);
        assert_eq!(sorted(effects), expected, "effects");
        for (began, done) in std::mem::take(&mut self.model.finished) {
            assert_eq!(self.core.job_state(began), done, "what began at {began}");
        }
        for sweep in &self.model.sweeps {
            assert_eq!(self.core.job_state(sweep.began), JobState::Running);
        }
        self.compare();
    }

    fn command(&mut self, context: &EntryContext, command: &Command) {
        let before = self.model.clone();
        let expected = self.expected(command);
        self.model.enforce_byte_limits();
        let reply = self.core.apply(context, command);
        self.twins.apply(context, command, &reply);
        assert_eq!(reply.clock_ms, self.core.clock_ms());
        assert_eq!(reply.awaits, self.model.awaits.filter(|_| expected.is_ok()), "what {command:?} awaits");
        let mut got = reply.outcome;
        if let (Ok(Response::Acquired { outcome, .. }), Command::Locks(command)) = (&mut got, command)
            && let Some(request) = match command {
                LocksCommand::Session(command) => before.named_acquire(command),
                command => command.as_acquire().map(|(request, _)| request.clone()),
            }
        {
            check_cycle(&before, &request, outcome);
        }
        match (&got, &expected) {
            (Err(CommandError::QuotaExceeded { .. }), Err(CommandError::QuotaExceeded { .. }))
            | (Err(CommandError::Malformed(_)), Err(CommandError::Malformed(_)))
            | (Err(CommandError::Busy(_)), Err(CommandError::Busy(_))) => {}
            _ => assert_eq!(got, expected, "answer to {command:?}\nafter\n{}", before.describe()),
        }
    }

    fn expected(&mut self, command: &Command) -> Result<Response, CommandError> {
        let Command::Locks(command) = command else { unreachable!("only commands of locks") };
        let model = &mut self.model;
        model.begin_slice();
        model.awaits = None;
        model.at_least_ms = command.at_least_ms();
        if model.rules < command.min_rules() {
            return Err(CommandError::Malformed(String::new()));
        }
        match command {
            LocksCommand::Acquire(request) => {
                model.evict_events_for(request);
                model.acquire(request, &[])
            }
            LocksCommand::Reattach(Reattach { acquire, abandoned }) => {
                model.evict_events_for(acquire);
                model.acquire(acquire, abandoned)
            }
            LocksCommand::AcquireAtLeast(AcquireAtLeast { acquire, abandoned, .. }) => {
                model.evict_events_for(acquire);
                model.acquire(acquire, abandoned)
            }
            LocksCommand::AskRelease(ask) => model.ask_release(ask),
            LocksCommand::Release(request) => model.release(request),
            LocksCommand::Delete { path, .. } => model.delete(path),
            LocksCommand::Cancel(cancel) => Ok(model.cancel(cancel, &[])),
            LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned }) => Ok(model.cancel(cancel, abandoned)),
            LocksCommand::Reset(reset) => model.reset(reset),
            LocksCommand::OpenSession(open) => {
                model.evict_events_to_open(open);
                model.open(open)
            }
            LocksCommand::CloseSession { session_id, message, .. } => model.close(session_id, *message),
            LocksCommand::ExpireSessions { ids, known_revision } => Ok(model.expire(ids, *known_revision)),
            LocksCommand::LockInfo(info) => model.lock_info(info),
            LocksCommand::LockInfoPart(info) => model.lock_info_part(info),
            LocksCommand::Session(command) => model.session_command(command),
            LocksCommand::Deliver { .. } => unreachable!("the namespace stays open"),
            LocksCommand::Latch(_)
            | LocksCommand::Permit(_)
            | LocksCommand::ReportPermits(_)
            | LocksCommand::Barrier(_)
            | LocksCommand::Condition(_)
            | LocksCommand::Table(_) => unreachable!("other kinds have models of their own"),
            LocksCommand::Batch(_) => unreachable!("a list does what its commands do one by one"),
        }
    }

    /// A replica that applies everything again, and takes no effects, comes to the same bytes.
    fn replay(&self) {
        let mut core = self.twins.new_shard();
        for (context, commands) in &self.log {
            core.advance(context);
            for command in commands {
                core.apply(context, command);
            }
        }
        assert_eq!(core.snapshot(), self.core.snapshot());
    }

    /// A snapshot with a damaged byte is refused, or makes a state that is whole.
    fn restore_damaged(&self, dice: &mut SeededRng) {
        let mut chunks = self.core.snapshot();
        let chunk = &mut chunks[0];
        let at = dice.below(chunk.len() as u64) as usize;
        chunk[at] ^= 1 << dice.below(8);
        if let Ok(mut restored) = self.twins.restored(&chunks) {
            // Whoever could have been granted is granted with the next entry.
            restored.advance(&context(self.now_ms, self.rules));
            restored.verify();
        }
    }

    /// After a reset, and when all transitions are over, nothing is left.
    fn reset(&mut self) {
        // Another reset may be under way, and then this one would have to come again.
        self.finish();
        let reset = holdfast_core::Reset { namespace: namespace(), live_owners: vec![], before_revision: None };
        self.entry(1, 1, |_| Command::Locks(LocksCommand::Reset(reset.clone())));
        self.entry(1_000, 0, |_| unreachable!("no command is asked for"));
        self.finish();
    }

    /// Entries without commands, one after the other, until there is nothing to go on with.
    fn finish(&mut self) {
        let things = self.core.footprint();
        let mut entries = 1 + things.holds + things.waits + things.sessions;
        while self.core.has_backlog() {
            self.entry(0, 0, |_| unreachable!("no command is asked for"));
            entries = entries.checked_sub(1).expect("what is begun is finished");
        }
    }

    /// After the deletion of the namespace nothing is left, and everybody concerned is told.
    fn purge(&mut self) {
        let context = context(self.now_ms, self.rules);
        self.core.advance(&context);
        self.model.advance(&context);
        let message = NamespaceMessage::Purge { namespace: namespace() };
        let purge = Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message });
        self.twins.advance(&context);
        let reply = self.core.apply(&context, &purge);
        self.twins.apply(&context, &purge, &reply);
        self.log.push((context, vec![purge]));
        let expected = sorted(self.model.purge());
        let effects = self.core.take_effects();
        self.twins.end_entry(&self.core, &effects);
        assert_eq!(sorted(effects), expected, "effects of a purge");
        self.core.verify();
        assert_eq!(self.core.next_deadline_ms(), None);
    }
}

fn sorted(mut effects: Vec<Effect>) -> Vec<Effect> {
    effects.sort_by_key(|effect| format!("{effect:?}"));
    effects
}

/// One run; in half of them each bound is met again and again, unless there are other bounds given.
fn run(seed: u64, bounds: Option<Bounds>) {
    mutations::enable_mutation_from_env();
    let dice = &mut SeededRng::new(seed);
    let style = Workload::new(dice);
    let is_tiny = dice.one_in(2);
    let mut run = Run::new(dice, bounds.or(is_tiny.then(Bounds::tiny)));
    for _ in 0..STEPS_IN_A_RUN {
        let passed_ms = if dice.one_in(2) { 0 } else { dice.below(12) };
        let commands = if dice.one_in(6) { dice.below(4) } else { 1 };
        run.entry(passed_ms, commands, |model| style.command(dice, model));
        if dice.one_in(10) {
            run.compare_queries(dice);
        }
        if dice.one_in(150) {
            run.rules = Rules::HIGHEST;
        }
        if dice.one_in(80) {
            run.restore_damaged(dice);
        }
    }
    run.compare_events(dice);
    if dice.one_in(2) {
        run.purge();
    } else {
        run.reset();
        run.compare_events(dice);
    }
    assert_eq!(run.core.footprint(), Default::default());
    run.replay();
}

fn env_setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Runs one seed after the other until there were so many steps, and says which run fails.
fn run_seeds(steps_in_a_run: u64, run: impl Fn(u64) + RefUnwindSafe) {
    let steps = env_setting("HOLDFAST_MODEL_STEPS", if cfg!(debug_assertions) { 30_000 } else { 300_000 });
    let first = env_setting("HOLDFAST_MODEL_SEED", 1);
    let runs = steps.div_ceil(steps_in_a_run);
    for seed in first..first + runs {
        if seed % 500 == 0 {
            println!("seed {seed}");
        }
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("HOLDFAST_MODEL_STEPS=1 HOLDFAST_MODEL_SEED={seed} reproduces it");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{} steps in {runs} runs, from seed {first} on", runs * steps_in_a_run);
}

#[test]
fn the_engine_does_what_the_naive_model_does() {
    run_seeds(STEPS_IN_A_RUN, |seed| run(seed, None));
}

/// A search that gives up and takes whoever may wait for somebody who waits made replicas differ, and panic. It is found.
#[test]
fn a_search_that_falls_back_is_found() {
    let bounds = Bounds { search_falls_back_after: Some(2), ..Bounds::tiny() };
    let found = (1..=100_u64).find(|seed| std::panic::catch_unwind(|| run(*seed, Some(bounds.clone()))).is_err());
    println!("found in run {}", found.expect("a search that falls back should be found in 100 runs"));
}
