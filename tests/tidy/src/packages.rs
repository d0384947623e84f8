//! The packages of the workspace and what they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId, TargetKind};

/// The workspace as cargo resolves it.
pub struct Workspace {
    metadata: Metadata,
}

/// A dependency that a package declares.
pub struct DeclaredDependency<'a> {
    /// The name of what it depends on.
    pub name: &'a str,
    /// Whether only its tests need it.
    pub is_for_tests: bool,
}

impl Workspace {
    /// Asks cargo what is built for Linux, so that nothing has to be downloaded for other systems.
    ///
    /// # Errors
    /// When cargo fails.
    pub fn read(root: &Path) -> Result<Self> {
        let linux = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .other_options(["--filter-platform".to_owned(), linux, "--locked".to_owned()])
            .exec()
            .context("cargo metadata")?;
        Ok(Self { metadata })
    }

    /// The packages of a folder of the workspace, like `services`, by the name of their own folder.
    pub fn packages_in(&self, folder: &str) -> BTreeMap<String, &Package> {
        let root = self.metadata.workspace_root.join(folder);
        let members = self.metadata.workspace_packages();
        members
            .into_iter()
            .filter_map(|package| {
                let directory = package.manifest_path.parent()?;
                (directory.parent()? == root).then(|| (directory.file_name().unwrap_or_default().to_owned(), package))
            })
            .collect()
    }

    /// All packages of the workspace.
    pub fn members(&self) -> Vec<&Package> {
        self.metadata.workspace_packages()
    }

    /// What a package declares, tests included.
    pub fn declared_dependencies<'a>(&self, package: &'a Package) -> Vec<DeclaredDependency<'a>> {
        let declared = |dependency: &'a cargo_metadata::Dependency| DeclaredDependency {
            name: &dependency.name,
            is_for_tests: dependency.kind == DependencyKind::Development,
        };
        package.dependencies.iter().map(declared).collect()
    }

    /// The names of everything that is built into a package, however far away; what only tests need is left out.
    pub fn transitive_dependencies(&self, package: &Package) -> BTreeSet<&str> {
        let Some(resolve) = &self.metadata.resolve else { return BTreeSet::new() };
        let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
        let mut seen = BTreeSet::new();
        let mut next = vec![&package.id];
        while let Some(id) = next.pop() {
            for dependency in nodes.get(id).map(|node| node.deps.as_slice()).unwrap_or_default() {
                let is_built_in = dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal);
                if is_built_in && seen.insert(&dependency.pkg) {
                    next.push(&dependency.pkg);
                }
            }
        }
        seen.into_iter().map(|id| self.metadata[id].name.as_str()).collect()
    }
}

/// The root files of a package's library and programs, from the root of the workspace.
pub fn crate_roots<'a>(package: &'a Package, root: &'a Path) -> impl Iterator<Item = &'a Path> {
    let is_crate = |kind: &TargetKind| matches!(kind, TargetKind::Lib | TargetKind::Bin | TargetKind::ProcMacro);
    package
        .targets
        .iter()
        .filter(move |target| target.kind.iter().any(is_crate))
        .filter_map(move |target| target.src_path.as_std_path().strip_prefix(root).ok())
}
