use super::*;
use crate::config_file::ConfigFile;

const SHIPPED: &str = include_str!("../../../cluster_config.json");

fn shipped() -> ClusterConfig {
    ClusterConfig::from_json(SHIPPED).unwrap()
}

fn seed(nodes: usize, shards: u32, replicas: u32) -> ConfigFile {
    let nodes = (1..=nodes).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number)));
    let config = ClusterConfig::generate(nodes.collect(), shards, replicas).unwrap();
    serde_json::from_str(&config.to_seed_json().unwrap()).unwrap()
}

/// Returns the replicas of each shard of a seed.
fn replicas_of(file: &mut ConfigFile) -> impl Iterator<Item = &mut Vec<Replica>> {
    let shards = file.applications.iter_mut().flat_map(|application| &mut application.shards);
    shards.map(|shard| shard.replicas.as_mut().unwrap())
}

/// Id, replica ids, preferred node, and shards by application.
fn shape<'a>(config: &'a ClusterConfig, group: &'a GroupConfig) -> (&'a str, Vec<u64>, &'a str, [usize; 3]) {
    let shards = || config.shards().filter(|shard| shard.group == group.id);
    let count = |name: &str| shards().filter(|shard| shard.id.starts_with(name)).count();
    let ids = group.replicas.iter().map(|replica| replica.id).collect();
    (&group.id, ids, &group.replicas[0].node_id, ["accounts", "namespaces", "locks"].map(count))
}

/// Returns the location and the message of the error for a seed after `break_it`.
fn seed_error(break_it: impl FnOnce(&mut ConfigFile)) -> (String, String) {
    let mut file = seed(3, 4, 3);
    break_it(&mut file);
    let error = file.into_config().unwrap_err();
    (error.field_path().unwrap().to_owned(), error.to_string())
}

#[test]
fn the_config_that_ships_makes_a_group_for_each_node() {
    let config = shipped();
    let groups: Vec<_> = config.groups.iter().map(|group| shape(&config, group)).collect();
    let expected = [
        ("g1", vec![1, 2, 3], "nd_1", [1, 5, 5]),
        ("g2", vec![4, 5, 6], "nd_2", [0, 6, 5]),
        ("g3", vec![7, 8, 9], "nd_3", [0, 5, 6]),
    ];
    assert_eq!(groups, expected);
    assert_eq!(config.next_replica_id, Some(100));
    let file: ConfigFile = serde_json::from_str(SHIPPED).unwrap();
    let listed = file.applications.iter().flat_map(|application| &application.shards);
    for (shard, listed) in config.shards().zip(listed) {
        let group = config.group(&shard.group).unwrap();
        assert_eq!(group.replicas[0].node_id, listed.replicas.as_ref().unwrap()[0].node_id);
    }
}

#[test]
fn larger_clusters_make_a_ring_of_groups_and_one_node_makes_one() {
    let config = seed(9, 16, 3).into_config().unwrap();
    let firsts: Vec<_> = config.groups.iter().map(|group| group.replicas[0].node_id.as_str()).collect();
    assert_eq!(firsts, ["nd_1", "nd_2", "nd_3", "nd_4", "nd_5", "nd_6", "nd_7", "nd_8", "nd_9"]);
    assert_eq!(seed(1, 16, 1).into_config().unwrap().groups.len(), 1);
}

#[test]
fn the_order_of_the_replicas_behind_the_first_does_not_matter() {
    let groups = |file: &ConfigFile| {
        let config = file.clone().into_config().unwrap();
        config.shards().map(|shard| shard.group.clone()).collect::<Vec<_>>()
    };
    let mut file = seed(3, 4, 3);
    let before = groups(&file);
    replicas_of(&mut file).skip(1).for_each(|replicas| replicas.swap(1, 2));
    assert_eq!(groups(&file), before);
    replicas_of(&mut file).last().unwrap().swap(0, 1);
    assert_ne!(groups(&file), before);
}

#[test]
fn the_next_replica_id_is_above_every_id_of_the_seed_and_never_below_what_it_says() {
    let derived = |says: Option<u64>| {
        let file = ConfigFile { next_replica_id: says, ..seed(3, 4, 3) };
        file.into_config().unwrap().next_replica_id
    };
    assert_eq!(derived(None), Some(28));
    assert_eq!(derived(Some(28)), Some(28));
    assert_eq!(derived(Some(500)), Some(500));
    let (at, message) = seed_error(|file| file.next_replica_id = Some(27));
    assert_eq!(at, "next_replica_id");
    assert!(message.contains("applications[2].shards[3].replicas[2].id is 27"), "{message}");
    let (at, _) = seed_error(|file| replicas_of(file).next().unwrap()[1].id = MAX_REPLICA_ID);
    assert_eq!(at, "applications[0].shards[0].replicas[1].id");
}

#[test]
fn errors_about_replicas_name_their_place_in_the_seed() {
    let (at, message) = seed_error(|file| replicas_of(file).nth(1).unwrap()[2].id = 1);
    assert_eq!(at, "applications[1].shards[0].replicas[2].id");
    assert!(message.contains("applications[0].shards[0].replicas[0].id"), "{message}");

    let (at, message) = seed_error(|file| {
        let replicas = replicas_of(file).nth(6).unwrap();
        replicas[2].node_id = replicas[0].node_id.clone();
    });
    assert_eq!(at, "applications[2].shards[1].replicas[2].node_id");
    assert!(message.contains("already keeps applications[2].shards[1].replicas[0] of this shard"), "{message}");

    let (at, message) = seed_error(|file| replicas_of(file).next().unwrap()[1].node_id = "nd_9".into());
    assert_eq!(at, "applications[0].shards[0].replicas[1].node_id");
    assert!(message.contains("there is no node \"nd_9\""), "{message}");

    let (at, message) = seed_error(|file| drop(replicas_of(file).nth(6).unwrap().pop()));
    assert_eq!(at, "applications[2].shards[1].replicas");
    assert!(message.contains("there are 2, but replication_factor is 3"), "{message}");
    assert_eq!(seed_error(|file| replicas_of(file).nth(1).unwrap().clear()).0, "applications[1].shards[0].replicas");

    for id in [0, 1 << 53] {
        let (at, _) = seed_error(|file| replicas_of(file).next().unwrap()[0].id = id);
        assert_eq!(at, "applications[0].shards[0].replicas[0].id");
    }
}

#[test]
fn too_many_groups_are_refused_with_what_to_do() {
    let mut file = seed(20, 900, 3);
    // Another set of nodes for each shard, as far as there are any.
    let mut sets = (0..20_usize).flat_map(|a| (0..20).flat_map(move |b| (b + 1..20).map(move |c| [a, b, c])));
    for replicas in replicas_of(&mut file) {
        let [first, second, third] = sets.by_ref().find(|[a, b, c]| a != b && a != c).unwrap_or([0, 1, 2]);
        for (replica, node) in replicas.iter_mut().zip([first, second, third]) {
            replica.node_id = format!("nd_{}", node + 1);
        }
    }
    let refusal = file.into_config().unwrap_err().to_string();
    assert!(refusal.contains("groups") && refusal.contains("at most 1024"), "{refusal}");
}

#[test]
fn a_successor_in_the_seed_form_may_not_derive_other_groups() {
    let successor = |change: fn(&mut ConfigFile)| {
        let mut file: ConfigFile = serde_json::from_str(SHIPPED).unwrap();
        file.version = 2;
        change(&mut file);
        shipped().check_transition(&file.into_config().unwrap())
    };
    successor(|_| {}).unwrap();
    successor(|file| {
        file.nodes.push(crate::Node {
            id: "nd_4".into(),
            address: "127.0.0.1:7003".into(),
            gateway_address: None,
            zone: None,
        });
    })
    .unwrap();
    // namespaces_01 of g3 before namespaces_00 of g2: each group would get the other's name.
    let renamed = successor(|file| file.applications[1].shards.swap(0, 1)).unwrap_err();
    assert_eq!(renamed.field_path(), Some("applications[1].shards[1].group"));
    assert!(renamed.to_string().contains("in the order of the first file"), "{renamed}");
    // namespaces_03 is of g2, too: the group keeps its name, and its replicas would get other ids.
    let anchored = successor(|file| file.applications[1].shards.swap(0, 3)).unwrap_err();
    assert_eq!(anchored.field_path(), Some("groups[1].replicas[0].id"));
    // One shard on other nodes leaves its group.
    let moved = successor(|file| replicas_of(file).last().unwrap().swap(0, 1)).unwrap_err();
    assert_eq!(moved.field_path(), Some("applications[2].shards[15].group"));
}
