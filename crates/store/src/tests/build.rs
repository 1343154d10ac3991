//! Builds and what they leave.

use domain::{BuildId, BuildSpec, BuildStatus, BuildStep, RuntimeDefaults, TemplateId, TemplateStatus};
use jiff::{SignedDuration, Timestamp};

use super::{Fixture, fixture, template};
use crate::{
    BuildQuota, BuildRow, BuildWritten, BuiltImage, CachedStep, TemplateRemoved, TemplateRow, Written,
};

const QUOTA: BuildQuota = BuildQuota { templates: 2, builds: 2 };

fn own(f: &Fixture, name: &str) -> TemplateRow {
    let steps = vec![
        BuildStep::Run("a\n'b'".to_owned()),
        BuildStep::Env { key: "A".to_owned(), value: "1".to_owned() },
        BuildStep::Workdir("/srv".to_owned()),
        BuildStep::User { name: "app".to_owned(), sudo: true },
    ];
    let spec = BuildSpec::new("x", steps, Some("serve".to_owned()), None).unwrap();
    let row = template(name, f.team);
    TemplateRow { status: TemplateStatus::Building, layers: Vec::new(), spec: Some(spec), ..row }
}

fn build(of: &TemplateRow, hash: &str) -> BuildRow {
    BuildRow {
        id: BuildId::new(),
        template: of.id,
        team: of.team,
        status: BuildStatus::Pending,
        spec_hash: hash.to_owned(),
        error: None,
        created_at: Timestamp::from_microsecond(1_700_000_000_000_000).unwrap(),
        started_at: None,
        finalized_at: None,
    }
}

#[tokio::test]
async fn a_build_ends_once_and_a_usable_template_stays_so() {
    let f = fixture().await;
    let (row, now) = (own(&f, "a"), Timestamp::from_second(1_700_000_100).unwrap());
    let first = build(&row, "h");
    assert_eq!(f.store.template_create(&row, &first, QUOTA).await.unwrap(), BuildWritten::Applied);
    assert_eq!(f.store.template_get(row.id).await.unwrap().unwrap(), row);
    assert_eq!(f.store.template_remove(f.team, row.id).await.unwrap(), TemplateRemoved::Building);
    let same = f.store.build_create(&build(&row, "h"), QUOTA).await.unwrap();
    assert_eq!(same, BuildWritten::Same(Box::new(first.clone())));
    assert!(f.store.build_advance(first.id, BuildStatus::Building, now).await.unwrap());
    assert_eq!(f.store.build_in_flight().await.unwrap().len(), 1);
    let image = BuiltImage {
        layers: vec!["aa".to_owned(), "bb".to_owned()],
        size_bytes: 7,
        defaults: RuntimeDefaults { ready_cmd: Some("true".to_owned()), ..RuntimeDefaults::default() },
    };
    assert!(f.store.build_succeed(first.id, &image, now).await.unwrap());
    // Whoever comes later, a cancel or a restart, finds it ended.
    assert!(!f.store.build_fail(first.id, BuildStatus::Cancelled, "x", now).await.unwrap());
    assert!(!f.store.build_advance(first.id, BuildStatus::Snapshotting, now).await.unwrap());
    let ready = f.store.template_get(row.id).await.unwrap().unwrap();
    assert_eq!(
        (ready.status, &ready.layers, &ready.defaults),
        (TemplateStatus::Ready, &image.layers, &image.defaults)
    );

    let second = build(&row, "h");
    assert_eq!(f.store.build_create(&second, QUOTA).await.unwrap(), BuildWritten::Applied);
    assert!(f.store.build_fail(second.id, BuildStatus::Failed, "step_failed: no", now).await.unwrap());
    let still = f.store.template_get(row.id).await.unwrap().unwrap();
    assert_eq!((still.status, still.error), (TemplateStatus::Ready, None));
    let listed = f.store.build_list(row.id, 10).await.unwrap();
    assert_eq!(listed.iter().map(|build| build.id).collect::<Vec<_>>(), [second.id, first.id]);
    assert_eq!(listed[0].error.as_deref(), Some("step_failed: no"));
    let removed = f.store.template_remove(f.team, row.id).await.unwrap();
    assert!(matches!(removed, TemplateRemoved::Removed(builds) if builds.len() == 2));
    assert!(f.store.build_ids().await.unwrap().is_empty());
}

#[tokio::test]
async fn quotas_and_failures() {
    let f = fixture().await;
    let now = Timestamp::now();
    let rows = [own(&f, "a"), own(&f, "b"), own(&f, "c")];
    let builds = [build(&rows[0], "1"), build(&rows[1], "2"), build(&rows[2], "3")];
    for number in 0..2 {
        let made = f.store.template_create(&rows[number], &builds[number], QUOTA).await.unwrap();
        assert_eq!(made, BuildWritten::Applied);
    }
    let third = f.store.template_create(&rows[2], &builds[2], QUOTA).await.unwrap();
    assert_eq!(third, BuildWritten::TooManyTemplates);
    let more = BuildQuota { templates: 9, ..QUOTA };
    assert_eq!(
        f.store.template_create(&rows[2], &builds[2], more).await.unwrap(),
        BuildWritten::TooManyBuilds
    );
    assert_eq!(f.store.template_get(rows[2].id).await.unwrap(), None, "nothing is left of a refusal");
    assert_eq!(
        f.store.build_create(&build(&rows[0], "other"), QUOTA).await.unwrap(),
        BuildWritten::TooManyBuilds
    );
    assert_eq!(f.store.build_create(&build(&rows[2], "x"), more).await.unwrap(), BuildWritten::NoTemplate);

    f.store.build_fail(builds[0].id, BuildStatus::Failed, "x: y", now).await.unwrap();
    let failed = f.store.template_get(rows[0].id).await.unwrap().unwrap();
    assert_eq!((failed.status, failed.error.as_deref()), (TemplateStatus::Failed, Some("x: y")));
    f.store.build_create(&build(&rows[0], "1"), QUOTA).await.unwrap();
    let again = f.store.template_get(rows[0].id).await.unwrap().unwrap();
    assert_eq!((again.status, again.error), (TemplateStatus::Building, None));
}

#[tokio::test]
async fn layers_are_in_use_as_long_as_something_says_so() {
    let f = fixture().await;
    let now = Timestamp::now();
    let old = now.checked_sub(SignedDuration::from_hours(48)).unwrap();
    let since = now.checked_sub(SignedDuration::from_hours(24)).unwrap();
    let step = |layer: &str| CachedStep { layer: Some(layer.to_owned()), size_bytes: 1 };
    let mut row = own(&f, "a");
    row.layers = vec!["of-template".to_owned(), "of-both".to_owned()];
    f.store.template_put(&row).await.unwrap();
    for (key, layer, time) in [("1", "of-both", old), ("2", "only-cached", now), ("3", "forgotten", old)] {
        f.store.cache_put(key, &step(layer), time).await.unwrap();
    }
    f.store.cache_put("4", &CachedStep { layer: None, size_bytes: 0 }, now).await.unwrap();
    let used = f.store.layers_in_use(since).await.unwrap();
    assert_eq!(used, ["of-both", "of-template", "only-cached", "sha256:aa"]);
    assert_eq!(f.store.cache_get("3", now).await.unwrap(), None);
    assert_eq!(f.store.cache_get("1", now).await.unwrap(), Some(step("of-both")));
    assert_eq!(f.store.cache_get("4", now).await.unwrap().unwrap().layer, None);
    // With its template goes what only it had.
    f.store.template_remove(f.team, row.id).await.unwrap();
    assert_eq!(f.store.cache_get("1", now).await.unwrap(), None);
    assert_eq!(f.store.cache_get("2", now).await.unwrap(), Some(step("only-cached")));
}

#[tokio::test]
async fn what_is_kept_for_builds_has_a_bound() {
    let f = fixture().await;
    let now = Timestamp::now();
    let ago = |hours| now.checked_sub(SignedDuration::from_hours(hours)).unwrap();
    let mut row = own(&f, "a");
    row.layers = vec!["of-template".to_owned()];
    f.store.template_put(&row).await.unwrap();
    // What a template has counts for nothing; two steps that made the same count once.
    for (key, layer, bytes, hours) in [
        ("1", "of-template", 1_000, 9),
        ("2", "newest", 40, 1),
        ("3", "newest", 40, 2),
        ("4", "middle", 50, 3),
        ("5", "oldest", 30, 4),
        ("6", "small-and-older", 1, 5),
    ] {
        let step = CachedStep { layer: Some(layer.to_owned()), size_bytes: bytes };
        f.store.cache_put(key, &step, ago(hours)).await.unwrap();
    }
    let kept = async |most| {
        f.store.cache_trim(most).await.unwrap();
        f.store.layers_in_use(ago(24)).await.unwrap()
    };
    assert_eq!(
        kept(121).await,
        ["middle", "newest", "of-template", "oldest", "sha256:aa", "small-and-older"]
    );
    assert_eq!(kept(90).await, ["middle", "newest", "of-template", "sha256:aa"]);
    assert_eq!(kept(0).await, ["of-template", "sha256:aa"]);
    assert!(f.store.cache_get("1", now).await.unwrap().is_some());
}

#[tokio::test]
async fn a_sandbox_is_written_only_while_its_template_has_these_layers() {
    let f = fixture().await;
    let mut stale = f.row("a", &[]);
    stale.layers = vec!["of-yesterday".to_owned()];
    assert_eq!(f.store.sandbox_create(stale, &[], 9).await.unwrap(), Written::Stale);
    let mut gone = f.row("b", &[]);
    gone.template = Some(TemplateId::new());
    assert_eq!(f.store.sandbox_create(gone, &[], 9).await.unwrap(), Written::Stale);
    f.add(f.row("c", &[])).await;
}
