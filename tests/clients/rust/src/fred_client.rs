use fred::interfaces::{ClientLike, TransactionInterface};
use fred::prelude::{
    Builder, Client as Connection, Config, FredResult, Server, ServerConfig, Value,
};
use fred::types::{CustomCommand, RespVersion};
use serde_json::{json, Value as Json};
use tokio::task::AbortHandle;

use crate::Client;

/// fred, with the task that has its connection.
#[derive(Clone)]
pub struct Fred(Connection, AbortHandle);

impl Client for Fred {
    const NAME: &str = "fred";
    const ERRORS_IN_EXEC: bool = false;

    async fn connect(port: u16, resp3: bool) -> Fred {
        let version = if resp3 { RespVersion::RESP3 } else { RespVersion::RESP2 };
        let server = ServerConfig::Centralized { server: Server::new("127.0.0.1", port) };
        let config = Config { version, server, ..Config::default() };
        let client = Builder::from_config(config).build().unwrap();
        Fred::begin(client).await
    }

    async fn another(&self) -> Fred {
        Fred::begin(self.0.clone_new()).await
    }

    async fn call(&self, words: Vec<String>) -> Json {
        as_json(self.0.custom(command(&words), words[1..].to_vec()).await)
    }

    async fn pipeline(&self, calls: Vec<Vec<String>>) -> Vec<Json> {
        let pipeline = self.0.pipeline();
        for words in &calls {
            let () = pipeline.custom(command(words), words[1..].to_vec()).await.unwrap();
        }
        pipeline.try_all::<Value>().await.into_iter().map(as_json).collect()
    }

    async fn transaction(&self, calls: Vec<Vec<String>>) -> Vec<Json> {
        let multi = self.0.multi();
        for words in &calls {
            let () = multi.custom(command(words), words[1..].to_vec()).await.unwrap();
        }
        match multi.exec::<Value>(false).await.unwrap() {
            Value::Array(replies) => replies.into_iter().map(|reply| as_json(Ok(reply))).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Not by its QUIT, which stands behind what waits.
    async fn close(self) {
        self.1.abort();
    }
}

impl Fred {
    async fn begin(client: Connection) -> Fred {
        let task = client.init().await.unwrap().abort_handle();
        Fred(client, task)
    }
}

/// Told that a call waits, fred sends nothing else on its connection meanwhile.
fn command(words: &[String]) -> CustomCommand {
    let waits = words.iter().any(|word| word == "BLOCK");
    CustomCommand::new(words[0].clone(), None::<u16>, waits)
}

fn as_json(reply: FredResult<Value>) -> Json {
    match reply {
        Ok(Value::Null) => Json::Null,
        Ok(Value::Integer(number)) => json!(number),
        Ok(Value::String(text)) => json!(text.to_string()),
        Ok(Value::Array(values)) => values.into_iter().map(|value| as_json(Ok(value))).collect(),
        Ok(other) => panic!("{other:?}"),
        Err(error) => json!({"error": error.details()}),
    }
}
