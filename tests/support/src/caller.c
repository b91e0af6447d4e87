/* A module for tests: CALLER.CALL command [argument ...] calls the command by RedisModule_Call and passes its reply on.
 * CALLER.THREAD does so in a thread of its own, under the server's lock.
 * The few functions that it needs are declared here, as a module may. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;
typedef struct Blocked Blocked;
typedef int (*Command)(Context *, String **, int);

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static Reply *(*Call)(Context *, const char *, const char *, ...);
static void (*FreeCallReply)(Reply *);
static int (*ReplyWithCallReply)(Context *, Reply *);
static int (*ReplyWithError)(Context *, const char *);
static const char *(*StringPtrLen)(const String *, size_t *);
static void (*RetainString)(Context *, String *);
static void (*FreeString)(Context *, String *);
static Blocked *(*BlockClient)(Context *, Command, Command, void (*)(Context *, void *), long long);
static int (*UnblockClient)(Blocked *, void *);
static Context *(*GetThreadSafeContext)(Blocked *);
static void (*FreeThreadSafeContext)(Context *);
static void (*ThreadSafeContextLock)(Context *);
static void (*ThreadSafeContextUnlock)(Context *);

static int call(Context *ctx, String **argv, int argc) {
    if (argc < 2) return ReplyWithError(ctx, "ERR call what?");
    Reply *reply = Call(ctx, StringPtrLen(argv[1], NULL), "v", argv + 2, (size_t)argc - 2);
    if (!reply) return ReplyWithError(ctx, "ERR no reply");
    ReplyWithCallReply(ctx, reply);
    FreeCallReply(reply);
    return 0;
}

struct Work {
    Blocked *blocked;
    int argc;
    String *argv[];
};

static void *work(void *data) {
    struct Work *work = data;
    Context *ctx = GetThreadSafeContext(work->blocked);
    ThreadSafeContextLock(ctx);
    call(ctx, work->argv, work->argc);
    for (int at = 0; at < work->argc; at++) FreeString(NULL, work->argv[at]);
    ThreadSafeContextUnlock(ctx);
    FreeThreadSafeContext(ctx);
    UnblockClient(work->blocked, NULL);
    free(work);
    return NULL;
}

static int call_in_thread(Context *ctx, String **argv, int argc) {
    struct Work *data = malloc(sizeof(struct Work) + (size_t)argc * sizeof(String *));
    data->argc = argc;
    for (int at = 0; at < argc; at++) {
        RetainString(NULL, argv[at]);
        data->argv[at] = argv[at];
    }
    data->blocked = BlockClient(ctx, NULL, NULL, NULL, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, data)) abort();
    pthread_detach(thread);
    return 0;
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    get("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    get("RedisModule_CreateCommand", &CreateCommand);
    get("RedisModule_Call", &Call);
    get("RedisModule_FreeCallReply", &FreeCallReply);
    get("RedisModule_ReplyWithCallReply", &ReplyWithCallReply);
    get("RedisModule_ReplyWithError", &ReplyWithError);
    get("RedisModule_StringPtrLen", &StringPtrLen);
    get("RedisModule_RetainString", &RetainString);
    get("RedisModule_FreeString", &FreeString);
    get("RedisModule_BlockClient", &BlockClient);
    get("RedisModule_UnblockClient", &UnblockClient);
    get("RedisModule_GetThreadSafeContext", &GetThreadSafeContext);
    get("RedisModule_FreeThreadSafeContext", &FreeThreadSafeContext);
    get("RedisModule_ThreadSafeContextLock", &ThreadSafeContextLock);
    get("RedisModule_ThreadSafeContextUnlock", &ThreadSafeContextUnlock);
    SetModuleAttribs(ctx, "caller", 1, 1);
    if (CreateCommand(ctx, "caller.thread", call_in_thread, "write", 0, 0, 0)) return 1;
    return CreateCommand(ctx, "caller.call", call, "write", 0, 0, 0);
}
