//! One leader at a time, seen by everybody.

use futures::StreamExt;
use holdfast_contention::ContentionError;
use holdfast_contention::election::{Leader, LeaderElection, Leadership, Observation};

use crate::kit::{Backend, Failing, Failure, mutex, on_every_backend};
use crate::support::{eventually, in_time};

on_every_backend!(@without_polled_service
    a_leader_leads_until_it_resigns_and_then_the_next_one_does,
    what_a_leader_proclaims_is_seen,
    a_term_that_was_lost_does_not_come_back,
    a_leader_that_is_dropped_resigns,
    a_campaign_that_is_given_up_elects_nobody,
    changes_come_as_a_stream,
);

async fn campaign(election: &LeaderElection, name: &str) -> Leadership {
    in_time("an election", election.campaign_as(id(election, name), name)).await.unwrap()
}

/// Unique in the namespace.
fn id(election: &LeaderElection, name: &str) -> String {
    format!("{}:{name}", election.name())
}

async fn next_value(observation: &mut Observation) -> Option<String> {
    in_time("a change", observation.changed()).await.map(|leader| leader.value().to_owned())
}

async fn a_leader_leads_until_it_resigns_and_then_the_next_one_does(backend: Backend) {
    let election = LeaderElection::new(&backend.factory(), mutex());
    let mut observation = election.observe().unwrap();
    let first = campaign(&election, "first").await;
    assert!(first.is_leader());
    assert_eq!(next_value(&mut observation).await.as_deref(), Some("first"));
    let leader = observation.leader().unwrap();
    assert_eq!((leader.candidate_id(), leader.fencing_token()), (first.candidate_id(), Some(first.fencing_token())));
    let token = first.fencing_token();

    let waiting = tokio::spawn({
        let election = election.clone();
        async move { campaign(&election, "second").await }
    });
    // Whoever polls may take a while; nobody is elected while somebody leads.
    eventually("the term was renewed", async || backend.owner_is_fresh(&first).await).await;
    assert!(!waiting.is_finished());
    first.resign().await.unwrap();
    let second = in_time("the next leader", waiting).await.unwrap();
    assert!(second.is_leader() && second.fencing_token() > token);
    while next_value(&mut observation).await.as_deref() != Some("second") {}
    second.resign().await.unwrap();
    assert_eq!(next_value(&mut observation).await, None);
    assert_eq!(observation.leader(), None);
}

impl Backend {
    /// Whether that leader renewed its ownership since it was elected.
    async fn owner_is_fresh(&self, leadership: &Leadership) -> bool {
        let mutex = leadership.election().to_owned();
        let holding = self.store.holding(&mutex).await.unwrap().unwrap();
        holding.fencing_token == leadership.fencing_token()
            && holding.ttl_left.is_some_and(|left| holding.held_for + left > self.ttl + self.ttl / 4)
    }
}

async fn what_a_leader_proclaims_is_seen(backend: Backend) {
    let election = LeaderElection::new(&backend.factory(), mutex());
    let mut observation = election.observe().unwrap();
    let leadership = campaign(&election, "before").await;
    assert_eq!(next_value(&mut observation).await.as_deref(), Some("before"));
    leadership.proclaim("after").await.unwrap();
    let holding = backend.store.holding(leadership.election()).await.unwrap().unwrap();
    assert_eq!(holding.metadata["value"], "after");
    assert_eq!(next_value(&mut observation).await.as_deref(), Some("after"));
    assert_eq!(observation.leader().unwrap().fencing_token(), Some(leadership.fencing_token()));
    let too_long = leadership.proclaim("x".repeat(1_001)).await;
    assert!(matches!(too_long, Err(ContentionError::Invalid { .. })));
    assert!(leadership.is_leader());
    leadership.proclaim("x".repeat(1_000)).await.unwrap();
    leadership.resign().await.unwrap();
}

async fn a_term_that_was_lost_does_not_come_back(backend: Backend) {
    let failing = Failing::new(&backend.store);
    let name = mutex();
    let election = LeaderElection::new(&backend.with_store(failing.clone()).factory(), &*name);
    let leadership = campaign(&election, "a").await;
    failing.set(Failure::Immediate);
    in_time("the loss", leadership.lost()).await;
    assert!(!leadership.is_leader());
    failing.set(Failure::None);
    eventually("nothing is left of the term", async || backend.owner(&name).await.is_none()).await;
    assert!(!leadership.is_leader());
    let refused = leadership.proclaim("late").await;
    assert!(matches!(refused, Err(ContentionError::NotOwner { .. })), "{refused:?}");
    let next = campaign(&election, "a").await;
    assert!(next.is_leader() && next.fencing_token() > leadership.fencing_token());
    leadership.resign().await.unwrap();
    assert!(next.is_leader());
    next.resign().await.unwrap();
}

async fn a_leader_that_is_dropped_resigns(backend: Backend) {
    let election = LeaderElection::new(&backend.factory(), mutex());
    let first = campaign(&election, "first").await;
    let (name, token) = (first.election().to_owned(), first.fencing_token());
    drop(first);
    let second = campaign(&election, "second").await;
    assert!(second.fencing_token() > token);
    second.resign().await.unwrap();
    assert_eq!(backend.owner(&name).await, None);
}

async fn a_campaign_that_is_given_up_elects_nobody(backend: Backend) {
    let election = LeaderElection::new(&backend.factory(), mutex());
    let leader = campaign(&election, "leader").await;
    tokio::select! {
        elected = election.campaign_as(id(&election, "other"), "other") => panic!("{elected:?}"),
        () = eventually("the term was renewed", async || backend.owner_is_fresh(&leader).await) => {}
    }
    let name = leader.election().to_owned();
    leader.resign().await.unwrap();
    let next = campaign(&election, "next").await;
    assert_eq!(backend.owner(&name).await.as_deref(), Some(next.candidate_id()));
    next.resign().await.unwrap();
}

async fn changes_come_as_a_stream(backend: Backend) {
    let election = LeaderElection::new(&backend.factory(), mutex());
    let mut changes = Box::pin(election.observe().unwrap().into_stream());
    let leadership = campaign(&election, "a").await;
    let first = in_time("a leader", changes.next()).await.unwrap();
    assert_eq!(first.as_ref().map(Leader::value), Some("a"));
    leadership.resign().await.unwrap();
    assert_eq!(in_time("nobody", changes.next()).await, Some(None));
}
