//! All kinds together: random commands on one namespace, with sessions that end. What is done to one kind never changes
//! another, except for the revision that they share. Beside a shard that gets all commands there is one for each kind,
//! which gets only the commands of that kind and those for sessions and owners. Both have that kind in the same state.

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, Application, ArrivalView, AwaitView, BarrierCommand, BarrierQuery, BarrierView, Bounds, Command,
    CommandError, ConditionCommand, ConditionQuery, ConfigureSemaphore, Effect, EndedGeneration, FencingToken, Jobs,
    Kind, LatchQuery, LatchRef, LatchView, Limits, LockState, LockView, LocksCommand, MemberView, Metadata,
    NamespaceMessage, Owner, Path, PermitCommand, PermitHolderView, PermitQuery, PermitWaitView, PoolView, Query,
    Response, Revision, Rules, SemaphoreView, SessionNumber, WaitView,
};

use crate::mutations::enable_mutation_from_env;
use crate::random::{SeededRng, namespace};
use crate::together_commands::{INSIDE, Step, step};
use crate::{context, run_seeds};

const STEPS_IN_A_RUN: u64 = 150;
/// More rows than there ever are.
const LIMIT: u32 = 1_000;
const SESSIONS: usize = 3;

/// The kinds whose commands are mixed. Requests to release have no table. Conditions belong to locks, so what is done to
/// them counts as done to these.
const KINDS: [Kind; 5] = [Kind::Lock, Kind::Semaphore, Kind::Latch, Kind::Pool, Kind::Barrier];

/// What there is of one kind.
#[derive(Debug, Default, PartialEq)]
struct Scene {
    locks: Vec<LockView>,
    waits: Vec<WaitView>,
    semaphores: Vec<(SemaphoreView, Vec<PermitHolderView>)>,
    pools: Vec<(PoolView, Vec<MemberView>)>,
    permit_waits: Vec<PermitWaitView>,
    latches: Vec<(LatchView, Jobs)>,
    awaits: Vec<AwaitView>,
    barriers: Vec<(BarrierView, Vec<ArrivalView>, Vec<EndedGeneration>)>,
}

/// A wait that ended: of which kind, whose and which, and whether it was granted.
type Resolved = (Kind, String, bool);

struct Shard {
    core: ShardState,
    sessions: Vec<(String, SessionNumber)>,
}

impl Shard {
    fn new(now_ms: u64) -> Self {
        let core = ShardState::with_bounds(Application::Locks, "locks_00", Bounds::of(Rules::TWO));
        let mut shard = Self { core, sessions: Vec::new() };
        let message = NamespaceMessage::open(namespace(), Limits::default());
        shard.core.advance(&context(now_ms, Rules::TWO));
        let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
        shard.apply(now_ms, open).expect("it is opened");
        shard
    }

    fn apply(&mut self, now_ms: u64, command: LocksCommand) -> Result<Response, CommandError> {
        let command = self.numbered(command);
        self.core.apply(&context(now_ms, Rules::TWO), &Command::Locks(command)).outcome
    }

    /// The same with what each shard numbers otherwise: the token of the hold that an await gives up, and the generation
    /// that somebody leaves.
    fn numbered(&self, mut command: LocksCommand) -> LocksCommand {
        match &mut command {
            LocksCommand::Condition(ConditionCommand::Await(awaits)) => {
                awaits.fencing_token = self.token_of(&awaits.owner, &awaits.path);
            }
            LocksCommand::Barrier(BarrierCommand::Leave(leave)) => {
                leave.generation = self.generation_of(&leave.path, leave.generation == INSIDE);
            }
            _ => {}
        }
        command
    }

    /// Who holds which paths to write.
    fn holders(&self) -> Vec<(Owner, Path)> {
        let locks = self.locks().locks.into_iter();
        locks.filter_map(|lock| Some((lock.write_lock_holder?.owner, lock.path))).collect()
    }

    /// The token under which an owner holds exactly this path to write; another one if it does not.
    fn token_of(&self, owner: &Owner, path: &Path) -> FencingToken {
        let query = Query::Lock { namespace: namespace(), path: path.clone() };
        let Response::Lock(lock) = self.query(query) else { panic!("a lock") };
        let holder = lock.write_lock_holder.filter(|holder| holder.owner == *owner);
        holder.map_or(1, |holder| holder.fencing_token)
    }

    /// The generation of those inside, or else the one that gathers. A deleted barrier has neither, but remembers how its
    /// generations ended: then it is one that no barrier had.
    fn generation_of(&self, path: &Path, inside: bool) -> Revision {
        let all = self.barriers().barriers;
        let barrier = all.iter().map(|(barrier, ..)| barrier).find(|barrier| barrier.path == *path);
        let inside = barrier.and_then(|barrier| barrier.inside_generation).filter(|_| inside);
        inside.or(barrier.map(|barrier| barrier.generation)).unwrap_or(0)
    }

    /// Does what is for sessions and owners, whatever they have.
    fn for_all(&mut self, now_ms: u64, step: &Step) {
        let command = match step {
            Step::Of(..) => return,
            Step::ForAll(command) => command.clone(),
            // Each shard has other numbers.
            Step::Expire(session_id) => {
                let number = self.sessions.iter().find(|(id, _)| id == session_id).expect("it is open").1;
                LocksCommand::ExpireSessions { ids: vec![number], known_revision: self.core.revision() }
            }
        };
        match (&command, self.apply(now_ms, command.clone())) {
            (LocksCommand::OpenSession(open), Ok(Response::SessionOpened { session, .. })) => {
                self.sessions.push((open.session_id.clone(), session.number));
            }
            (_, outcome) => drop(outcome.expect("nothing is wrong with it")),
        }
        let open: Vec<String> = self.core.sessions().map(|session| session.session_id).collect();
        self.sessions.retain(|(id, _)| open.contains(id));
    }

    fn query(&self, query: Query) -> Response {
        self.core.query(0, &query).outcome.expect("it is there")
    }

    fn permits(&self, query: PermitQuery) -> Response {
        self.query(Query::Permit(query))
    }

    fn scene(&self, kind: Kind) -> Scene {
        let mut scene = match kind {
            Kind::Lock => self.locks(),
            Kind::Semaphore => self.semaphores(),
            Kind::Pool => self.pools(),
            Kind::Latch => self.latches(),
            Kind::Barrier => self.barriers(),
            Kind::Request | Kind::Condition => panic!("no command is for a {} alone", kind.name()),
        };
        let waits = PermitQuery::Waits { namespace: namespace(), after: None, limit: LIMIT };
        let Response::PermitWaits { waits, .. } = self.permits(waits) else { panic!("a page of waits") };
        scene.permit_waits = waits.into_iter().filter(|wait| wait.kind == kind).collect();
        scene
    }

    fn locks(&self) -> Scene {
        let (namespace, prefix, after, limit) = (namespace(), Path::default(), None, LIMIT);
        let query = Query::Locks { namespace: namespace.clone(), prefix, after, limit };
        let Response::Locks { mut locks, .. } = self.query(query) else { panic!("a page of locks") };
        // One without holders has the revision of the shard.
        let unlocked = locks.iter_mut().filter(|lock| lock.state == LockState::Unlocked);
        unlocked.for_each(|lock| lock.revision = 0);
        let query = Query::Waits { namespace: namespace.clone(), after: None, limit };
        let Response::Waits { waits, .. } = self.query(query) else { panic!("a page of waits") };
        let query = Query::Condition(ConditionQuery::Waits { namespace, path: None, after: None, limit });
        let Response::Awaits { waits: awaits, .. } = self.query(query) else { panic!("a page of awaits") };
        Scene { locks, waits, awaits, ..Scene::default() }
    }

    fn barriers(&self) -> Scene {
        let (namespace, prefix, after, limit) = (namespace(), Path::default(), None, LIMIT);
        let list = BarrierQuery::List { namespace: namespace.clone(), prefix, after, limit };
        let Response::Barriers { barriers, .. } = self.query(Query::Barrier(list)) else { panic!("a page") };
        let with_arrivals = |view: BarrierView| {
            let get = BarrierQuery::Get { namespace: namespace.clone(), path: view.path.clone() };
            match self.query(Query::Barrier(get)) {
                Response::BarrierArrivals { arrivals, outcomes, .. } => (view, arrivals, outcomes),
                other => panic!("its arrivals: {other:?}"),
            }
        };
        Scene { barriers: barriers.into_iter().map(with_arrivals).collect(), ..Scene::default() }
    }

    fn semaphores(&self) -> Scene {
        let Response::Semaphores { semaphores, .. } = self.list(Kind::Semaphore) else { panic!("a page") };
        let with_holders = |view: SemaphoreView| {
            let (namespace, path) = (namespace(), view.path.clone());
            match self.permits(PermitQuery::Get { namespace, path, after: None, limit: LIMIT }) {
                Response::SemaphoreHolders { holders, .. } => (view, holders),
                other => panic!("its holders: {other:?}"),
            }
        };
        Scene { semaphores: semaphores.into_iter().map(with_holders).collect(), ..Scene::default() }
    }

    fn pools(&self) -> Scene {
        let Response::Pools { pools, .. } = self.list(Kind::Pool) else { panic!("a page of pools") };
        let with_members = |view: PoolView| {
            let (namespace, path) = (namespace(), view.path.clone());
            match self.permits(PermitQuery::Members { namespace, path, after: None, limit: LIMIT }) {
                Response::PoolMembers { members, .. } => (view, members),
                other => panic!("its members: {other:?}"),
            }
        };
        Scene { pools: pools.into_iter().map(with_members).collect(), ..Scene::default() }
    }

    fn list(&self, kind: Kind) -> Response {
        let (namespace, prefix, after, limit) = (namespace(), Path::default(), None, LIMIT);
        self.permits(PermitQuery::List { namespace, kind, prefix, after, limit })
    }

    fn latches(&self) -> Scene {
        let (namespace, prefix, after, limit) = (namespace(), Path::default(), None, LIMIT);
        let list = LatchQuery::List { namespace: namespace.clone(), prefix, after, limit };
        let Response::Latches { latches, .. } = self.query(Query::Latch(list)) else { panic!("a page of latches") };
        let with_done = |view: LatchView| {
            let latch = LatchRef { namespace: namespace.clone(), path: view.path.clone(), id: None };
            match self.query(Query::Latch(LatchQuery::Get { latch, after: None, limit })) {
                Response::LatchJobs { done, .. } => (view, done),
                other => panic!("its jobs: {other:?}"),
            }
        };
        Scene { latches: latches.into_iter().map(with_done).collect(), ..Scene::default() }
    }

    /// Returns the waits that ended since the last time.
    fn resolved(&mut self) -> Vec<Resolved> {
        let effects = self.core.take_effects().into_iter();
        effects
            .filter_map(|effect| match effect {
                Effect::WaitResolved { owner, claims, outcome, .. } => {
                    Some((Kind::Lock, format!("{owner:?} {claims:?}"), outcome.fencing_token().is_some()))
                }
                Effect::PermitsResolved { owner, request_id, outcome, view, members, .. } => {
                    let what = format!("{owner:?} {request_id} {members:?}");
                    Some((view.kind(), what, outcome.fencing_token().is_some()))
                }
                Effect::AwaitWoken { owner, woken, .. } => Some((Kind::Lock, format!("{owner:?} {woken:?}"), false)),
                Effect::AwaitResolved { owner, outcome, woken, lock, .. } => {
                    let what = format!("{owner:?} {:?} {woken:?}", lock.path);
                    Some((Kind::Lock, what, outcome.fencing_token().is_some()))
                }
                Effect::BarrierSettled { path, .. } => Some((Kind::Barrier, format!("{path:?}"), true)),
                _ => None,
            })
            .collect()
    }
}

impl Scene {
    /// The same with tokens, waits and revisions counted among themselves only, since other kinds take some too.
    fn renumbered(mut self) -> Self {
        let mut numbers = self.numbers();
        let mut known: Vec<u64> = numbers.iter().map(|number| **number).collect();
        known.sort_unstable();
        known.dedup();
        for number in &mut numbers {
            **number = known.partition_point(|other| *other < **number) as u64;
        }
        self
    }

    fn numbers(&mut self) -> Vec<&mut u64> {
        let mut all = Vec::new();
        for lock in self.locks.iter_mut().filter(|lock| lock.state != LockState::Unlocked) {
            all.push(&mut lock.revision);
            let holders = lock.write_lock_holder.iter_mut().chain(&mut lock.read_lock_holders);
            all.extend(holders.map(|holder| &mut holder.fencing_token));
        }
        all.extend(self.waits.iter_mut().map(|wait| &mut wait.wait.0));
        for (semaphore, holders) in &mut self.semaphores {
            all.push(&mut semaphore.revision);
            all.extend(holders.iter_mut().map(|holder| &mut holder.fencing_token));
        }
        for (pool, members) in &mut self.pools {
            all.push(&mut pool.revision);
            for member in members {
                all.push(&mut member.free_since);
                all.extend(member.holder.iter_mut().map(|holder| &mut holder.fencing_token));
            }
        }
        all.extend(self.permit_waits.iter_mut().map(|wait| &mut wait.wait.0));
        all.extend(self.latches.iter_mut().flat_map(|(latch, _)| [&mut latch.id, &mut latch.revision]));
        all.extend(self.awaits.iter_mut().flat_map(|awaits| [&mut awaits.wait.0, &mut awaits.fencing_token]));
        for (barrier, _, outcomes) in &mut self.barriers {
            all.extend([&mut barrier.generation, &mut barrier.revision]);
            all.extend(&mut barrier.inside_generation);
            all.extend(outcomes.iter_mut().map(|outcome| &mut outcome.generation));
        }
        all
    }
}

/// What a command did, without its numbers.
fn summary(outcome: &Result<Response, CommandError>) -> String {
    let acquired = |outcome: &AcquireOutcome| match outcome {
        AcquireOutcome::Granted { .. } => "granted".to_owned(),
        AcquireOutcome::Refused(refused) => format!("{:?}", refused.reason),
        AcquireOutcome::Enqueued(_) => "queued".to_owned(),
    };
    match outcome {
        Ok(Response::Acquired { outcome, .. }) => acquired(outcome),
        Ok(Response::PermitsAcquired { outcome, members, .. }) => format!("{} {members:?}", acquired(outcome)),
        Ok(Response::Awaited { outcome, woken, .. }) => format!("{} {woken:?}", acquired(outcome)),
        Ok(Response::Signalled { success, signalled, awaiting, .. }) => format!("{success} {signalled} {awaiting}"),
        Ok(Response::AtBarrier { answer, .. }) => {
            format!("{:?} {:?} {:?} {:?}", answer.outcome, answer.index, answer.lost, answer.ended)
        }
        Ok(Response::Released { released, .. } | Response::PermitsReleased { released, .. }) => released.to_string(),
        Ok(Response::CountedDown { counted, .. }) => counted.to_string(),
        Ok(Response::LatchCreated { is_new, .. }) => is_new.to_string(),
        Ok(Response::LatchTotalSet { success, .. }) => success.to_string(),
        Ok(_) => "done".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

struct Run {
    all: Shard,
    alone: Vec<(Kind, Shard)>,
    now_ms: u64,
}

impl Run {
    fn new() -> Self {
        let now_ms = 1_000;
        let alone = KINDS.into_iter().map(|kind| (kind, Shard::new(now_ms))).collect();
        Self { all: Shard::new(now_ms), alone, now_ms }
    }

    fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.alone.iter_mut().map(|(_, shard)| shard).chain([&mut self.all])
    }

    fn advance(&mut self, passed_ms: u64) {
        self.now_ms += passed_ms;
        let context = context(self.now_ms, Rules::TWO);
        self.shards().for_each(|shard| shard.core.advance(&context));
    }

    fn step(&mut self, step: Step) {
        let now_ms = self.now_ms;
        let Step::Of(kind, command) = step else {
            return self.shards().for_each(|shard| shard.for_all(now_ms, &step));
        };
        let others: Vec<Kind> = KINDS.into_iter().filter(|other| *other != kind).collect();
        let before: Vec<Scene> = others.iter().map(|other| self.all.scene(*other)).collect();
        let outcome = self.all.apply(now_ms, command.clone());
        for (other, before) in others.into_iter().zip(before) {
            assert_eq!(self.all.scene(other), before, "{command:?} changed {other:?}");
        }
        let alone = self.alone.iter_mut().find(|(of, _)| *of == kind).expect("each kind has one");
        assert_eq!(summary(&outcome), summary(&alone.1.apply(now_ms, command.clone())), "{command:?}");
    }

    fn compare(&mut self) {
        self.all.core.verify();
        let resolved = self.all.resolved();
        for (kind, alone) in &mut self.alone {
            assert_eq!(self.all.scene(*kind).renumbered(), alone.scene(*kind).renumbered(), "{kind:?}");
            let ours: Vec<Resolved> = resolved.iter().filter(|wait| wait.0 == *kind).cloned().collect();
            assert_eq!(ours, alone.resolved(), "who was told");
        }
    }
}

fn run(seed: u64) {
    let (dice, mut run) = (&mut SeededRng::new(seed), Run::new());
    for _ in 0..STEPS_IN_A_RUN {
        run.advance(dice.pick(&[0, 0, 1, 3, 20]));
        run.compare();
        let sessions: Vec<String> = run.all.sessions.iter().map(|(id, _)| id.clone()).collect();
        let holders = run.all.holders();
        run.step(step(dice, &sessions, &holders, sessions.len() < SESSIONS));
        run.compare();
    }
    // Nothing is left of any owner.
    let reset = holdfast_core::Reset { namespace: namespace(), live_owners: vec![], before_revision: None };
    run.step(Step::ForAll(LocksCommand::Reset(reset)));
    run.advance(1_000);
    run.compare();
    assert_eq!(run.all.core.footprint(), Default::default());
}

#[test]
fn what_is_done_to_one_kind_changes_no_other() {
    enable_mutation_from_env();
    // Each step is one of the shard with everything, and of up to one for each kind.
    run_seeds(STEPS_IN_A_RUN * (1 + KINDS.len() as u64), run);
}

#[test]
fn a_command_that_changes_another_kind_is_found() {
    let create = || {
        let (namespace, path, permits) = (namespace(), Path::flat("a"), 1);
        let (description, metadata) = (String::new(), Metadata::new());
        let configure = ConfigureSemaphore { namespace, path, permits, description, metadata };
        LocksCommand::Permit(PermitCommand::Configure(configure))
    };
    let run = |kind| {
        let mut run = Run::new();
        run.step(Step::Of(kind, create()));
        run.compare();
    };
    run(Kind::Semaphore);
    std::panic::catch_unwind(|| run(Kind::Lock)).expect_err("locks changed semaphores");
}
