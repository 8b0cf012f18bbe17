//! An origin in a bucket: SeaweedFS, a server of its own.
//!
//! `SAKER_TEST_WEED=/path/to/weed cargo test -p saker-agent --test s3 -- --include-ignored`

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Agent, Job, ports, until};
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStoreExt, path::Path as Object};
use saker_dataset::Stage;

const SECRET: &str = "correct-horse";

/// Not a test: the process of an agent.
#[test]
fn agent_process() {
    common::agent_process();
}

/// A server, which ends with this.
struct Weed {
    child: Child,
    endpoint: String,
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Weed {
    fn start(weed: &str, dir: &Path) -> Weed {
        let [master, volume, filer, s3] = loop {
            // Its gRPC ports are these and 10,000.
            let found = ports::<4>();
            if found.iter().all(|port| *port < 50_000) {
                break found;
            }
        };
        let config = dir.join("s3.json");
        let text = format!(
            r#"{{"identities": [{{"name": "me", "credentials": [{{"accessKey": "me", "secretKey":
            "{SECRET}"}}], "actions": ["Admin", "Read", "Write", "List"]}}]}}"#
        );
        fs::write(&config, text).unwrap();
        let data = dir.join("weed");
        fs::create_dir(&data).unwrap();
        let child = Command::new(weed)
            .args([
                "server",
                "-ip=127.0.0.1",
                "-s3",
                "-volume.max=20",
                "-master.volumeSizeLimitMB=64",
            ])
            .arg(format!("-dir={}", data.display()))
            .arg(format!("-s3.config={}", config.display()))
            .arg(format!("-master.port={master}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-filer.port={filer}"))
            .arg(format!("-s3.port={s3}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("weed.log")).unwrap())
            .spawn()
            .unwrap();
        let server = Weed { child, endpoint: format!("http://127.0.0.1:{s3}") };
        until("a bucket", || {
            let mut shell = Command::new(weed)
                .args(["shell", &format!("-master=127.0.0.1:{master}")])
                .arg(format!("-filer=127.0.0.1:{filer}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let commands = b"s3.bucket.create -name data\ns3.bucket.list\n";
            let _ = shell.stdin.take().unwrap().write_all(commands);
            let said = shell.wait_with_output().unwrap().stdout;
            String::from_utf8_lossy(&said).lines().any(|line| line.trim().starts_with("data"))
        });
        server
    }

    fn env(&self, secret: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", "me".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
            ("AWS_ENDPOINT", self.endpoint.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// All files of a directory, below a prefix.
    fn put(&self, dir: &Path, prefix: &str) {
        let store = AmazonS3Builder::new()
            .with_bucket_name("data")
            .with_endpoint(&self.endpoint)
            .with_region("us-east-1")
            .with_allow_http(true)
            .with_access_key_id("me")
            .with_secret_access_key(SECRET)
            .build()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for file in fs::read_dir(dir).unwrap() {
            let file = file.unwrap();
            let name = Object::from(format!("{prefix}/{}", file.file_name().to_str().unwrap()));
            let data = fs::read(file.path()).unwrap();
            runtime.block_on(store.put(&name, data.into())).unwrap();
        }
    }
}

#[test]
#[ignore = "needs SeaweedFS: SAKER_TEST_WEED"]
fn a_bucket_is_staged() {
    let weed = std::env::var("SAKER_TEST_WEED").expect("SAKER_TEST_WEED names the program");
    let mut job = Job::new::<4>(Path::new("/usr/include/linux"), 4, "none");
    let server = Weed::start(&weed, job.temporary.path());
    server.put(&job.packed, "sets/linux");
    job.agents.iter_mut().for_each(|agent| agent.env = server.env(SECRET));
    job.start();
    let layout = Stage { origin: "s3://data/sets/linux".into(), ..job.layout(2) };
    job.stage(&layout);
    let from_origin = job.total("origin_read_bytes_total");
    assert!(from_origin <= job.packed_bytes(), "{from_origin} of {}", job.packed_bytes());
    // Nothing comes from the directory.
    fs::rename(job.packed.join("part-00000.saker"), job.temporary.path().join("away")).unwrap();
    job.agents.iter().for_each(|agent| assert!(job.compare(agent) > 100));
    // The keepers of partition 0 die: its files come from the bucket, one range each.
    let keepers: Vec<usize> = layout.keepers(0).collect();
    keepers.iter().for_each(|n| job.agents[*n].kill());
    let other = (0..4).find(|n| !keepers.contains(n)).unwrap();
    assert!(job.compare(&job.agents[other]) > 100);
    assert!(job.agents[other].counter("origin_reads_total") > 10);
}

#[test]
#[ignore = "needs SeaweedFS: SAKER_TEST_WEED"]
fn what_is_wrong_with_a_bucket_is_said() {
    let weed = std::env::var("SAKER_TEST_WEED").expect("SAKER_TEST_WEED names the program");
    let mut job = Job::new::<2>(Path::new("/usr/include/asm-generic"), 1, "none");
    let server = Weed::start(&weed, job.temporary.path());
    server.put(&job.packed, "sets/linux");
    job.agents[0].env = server.env(SECRET);
    job.agents[1].env = server.env("wrong");
    job.start();
    let says = |agent: &Agent, origin: &str, words: &str| {
        let layout = Stage {
            origin: origin.into(),
            nodes: vec![agent.config.listen.to_string()],
            ..job.layout(1)
        };
        agent.stage(&layout, 0).unwrap();
        let mut said = String::new();
        until(&format!("{words}, not {said}"), || {
            said = agent.status().datasets[0].error.clone();
            said.contains(words)
        });
    };
    says(&job.agents[0], "s3://data/sets/other", "s3://data/sets/other/dataset.json: not there");
    says(&job.agents[1], "s3://data/sets/linux", "s3://data/sets/linux/dataset.json: permission");
}
