"""Internal modules. Programs import redis_ratelimit and the modules next to this folder."""
