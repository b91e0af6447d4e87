/* A module for tests. Its load arguments say what it does:
 *
 *   call                      adds TESTS.CALL command [argument ...], which calls a command and passes its reply on, and
 *                             TESTS.THREAD, which does so in a thread of its own, under the server's lock
 *   take name [name ...]      adds commands of these names, each of which replies with a text
 *   meddle command [argument ...]   calls the command whenever a key leaves its name
 *
 * The few functions that it needs are declared here, as a module may. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;
typedef struct Blocked Blocked;
typedef int (*Command)(Context *, String **, int);

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, Command, const char *, int, int, int);
static int (*SubscribeToKeyspaceEvents)(Context *, int, int (*)(Context *, int, const char *, String *));
static Reply *(*Call)(Context *, const char *, const char *, ...);
static void (*FreeCallReply)(Reply *);
static int (*ReplyWithCallReply)(Context *, Reply *);
static int (*ReplyWithSimpleString)(Context *, const char *);
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

/* A command that outlives the call that named it. The first word is not part of it. */
struct Words {
    Blocked *blocked;
    int argc;
    String *argv[];
};

static struct Words *keep(String **argv, int argc) {
    struct Words *words = malloc(sizeof(struct Words) + (size_t)argc * sizeof(String *));
    words->argc = argc;
    for (int at = 0; at < argc; at++) {
        RetainString(NULL, argv[at]);
        words->argv[at] = argv[at];
    }
    return words;
}

static Reply *send(Context *ctx, String **argv, int argc) {
    return argc < 2 ? NULL : Call(ctx, StringPtrLen(argv[1], NULL), "v", argv + 2, (size_t)argc - 2);
}

static int call(Context *ctx, String **argv, int argc) {
    Reply *reply = send(ctx, argv, argc);
    if (!reply) return ReplyWithError(ctx, "ERR no reply");
    ReplyWithCallReply(ctx, reply);
    FreeCallReply(reply);
    return 0;
}

static void *work(void *data) {
    struct Words *words = data;
    Context *ctx = GetThreadSafeContext(words->blocked);
    ThreadSafeContextLock(ctx);
    call(ctx, words->argv, words->argc);
    for (int at = 0; at < words->argc; at++) FreeString(NULL, words->argv[at]);
    ThreadSafeContextUnlock(ctx);
    FreeThreadSafeContext(ctx);
    UnblockClient(words->blocked, NULL);
    free(words);
    return NULL;
}

static int call_in_thread(Context *ctx, String **argv, int argc) {
    struct Words *words = keep(argv, argc);
    words->blocked = BlockClient(ctx, NULL, NULL, NULL, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, words)) abort();
    pthread_detach(thread);
    return 0;
}

static int answer(Context *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    return ReplyWithSimpleString(ctx, "another module");
}

static struct Words *meddling;

static int meddle(Context *ctx, int type, const char *event, String *key) {
    (void)type, (void)key;
    if (strcmp(event, "rename_from") != 0) return 0;
    Reply *reply = send(ctx, meddling->argv, meddling->argc);
    if (reply) FreeCallReply(reply);
    return 0;
}

#define GET(name) get("RedisModule_" #name, &name)

int RedisModule_OnLoad(Context *ctx, String **argv, int argc) {
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    GET(SetModuleAttribs), GET(CreateCommand), GET(SubscribeToKeyspaceEvents), GET(Call), GET(FreeCallReply);
    GET(ReplyWithCallReply), GET(ReplyWithSimpleString), GET(ReplyWithError), GET(StringPtrLen), GET(RetainString);
    GET(FreeString), GET(BlockClient), GET(UnblockClient), GET(GetThreadSafeContext), GET(FreeThreadSafeContext);
    GET(ThreadSafeContextLock), GET(ThreadSafeContextUnlock);
    SetModuleAttribs(ctx, "tests", 1, 1);
    const char *what = argc ? StringPtrLen(argv[0], NULL) : "";
    if (strcmp(what, "call") == 0) {
        if (CreateCommand(ctx, "tests.thread", call_in_thread, "write", 0, 0, 0)) return 1;
        return CreateCommand(ctx, "tests.call", call, "write", 0, 0, 0);
    }
    if (strcmp(what, "take") == 0) {
        for (int at = 1; at < argc; at++) {
            if (CreateCommand(ctx, StringPtrLen(argv[at], NULL), answer, "write", 1, 1, 1)) return 1;
        }
        return 0;
    }
    if (strcmp(what, "meddle") != 0) return 1;
    meddling = keep(argv, argc);
    /* Class g: commands that are of no type. */
    return SubscribeToKeyspaceEvents(ctx, 1 << 2, meddle);
}
