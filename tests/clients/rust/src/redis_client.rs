use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Value};
use serde_json::{json, Value as Json};

use crate::Client;

/// redis-rs on tokio.
#[derive(Clone)]
pub struct Redis {
    client: redis::Client,
    connection: MultiplexedConnection,
}

impl Redis {
    async fn open(client: redis::Client) -> Redis {
        // Unless told otherwise, redis-rs gives up on a reply after half a second, and leaves the call in the line.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connection.await.unwrap();
        Redis { client, connection }
    }
}

impl Client for Redis {
    const NAME: &str = "redis-rs";
    const ERRORS_IN_EXEC: bool = true;

    async fn connect(port: u16, resp3: bool) -> Redis {
        let protocol = if resp3 { "resp3" } else { "resp2" };
        let url = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
        Redis::open(redis::Client::open(url).unwrap()).await
    }

    async fn another(&self) -> Redis {
        Redis::open(self.client.clone()).await
    }

    async fn call(&self, words: Vec<String>) -> Json {
        let mut connection = self.connection.clone();
        as_json(command(&words).query_async(&mut connection).await)
    }

    async fn pipeline(&self, calls: Vec<Vec<String>>) -> Vec<Json> {
        self.at_once(calls, redis::pipe()).await
    }

    async fn transaction(&self, calls: Vec<Vec<String>>) -> Vec<Json> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        self.at_once(calls, pipe).await
    }

    /// The connection closes with its last handle.
    async fn close(self) {}
}

impl Redis {
    async fn at_once(&self, calls: Vec<Vec<String>>, mut pipe: redis::Pipeline) -> Vec<Json> {
        for words in &calls {
            pipe.add_command(command(words));
        }
        let mut connection = self.connection.clone();
        let replies = pipe.ignore_errors().query_async::<Vec<Value>>(&mut connection).await;
        replies.unwrap().into_iter().map(|reply| as_json(Ok(reply))).collect()
    }
}

fn command(words: &[String]) -> Cmd {
    let mut command = redis::cmd(&words[0]);
    command.arg(&words[1..]);
    command
}

fn as_json(reply: RedisResult<Value>) -> Json {
    match reply.and_then(Value::extract_error) {
        Ok(Value::Nil) => Json::Null,
        Ok(Value::Okay) => json!("OK"),
        Ok(Value::Int(number)) => json!(number),
        Ok(Value::BulkString(bytes)) => json!(String::from_utf8(bytes).unwrap()),
        Ok(Value::SimpleString(text) | Value::VerbatimString { text, .. }) => json!(text),
        Ok(Value::Array(values)) => values.into_iter().map(|value| as_json(Ok(value))).collect(),
        Ok(other) => panic!("{other:?}"),
        Err(error) => match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => json!({"error": format!("{code} {detail}")}),
            _ => json!({"error": error.to_string()}),
        },
    }
}
